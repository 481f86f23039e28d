"""Rules of segmentation on settings."""

from ...settings.decisions import put
from ..rules import HUGGING_FACE, default_head, left_out, own
from .hosts import DEFAULT_HEAD

RULES = (
    own("own-crops", "the task crops images with their masks", lambda config: put(config, {"augment.crop": "none"})),
    HUGGING_FACE,
    default_head(DEFAULT_HEAD),
    left_out(("mixup", "cutmix", "erase"), "every pixel has its own class"),
)
