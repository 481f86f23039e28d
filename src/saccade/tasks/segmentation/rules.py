"""Rules of segmentation on settings."""

from ...settings.decisions import put
from ..rules import HUGGING_FACE, default_head, left_out, own
from .hosts import DEFAULT_HEAD

LIGHT_HEAD = "fpn:width=64,inner=64"  # for a CPU, as in the task's recipe

RULES = (
    own("own-crops", "the task crops images with their masks", lambda config: put(config, {"augment.crop": "none"})),
    HUGGING_FACE,
    default_head(DEFAULT_HEAD, LIGHT_HEAD),
    left_out(("mixup", "cutmix", "erase"), "every pixel has its own class"),
)
