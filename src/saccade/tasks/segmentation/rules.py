"""Settings that segmentation decides."""

from ...settings.decisions import put
from ..rules import HUGGING_FACE, left_out, of_timm, own
from .hosts import DEFAULT_HEAD

RULES = (
    own("own-crops", "the task crops images with their masks", lambda config: put(config, {"augment.crop": "none"})),
    HUGGING_FACE,
    of_timm(
        own(
            "default-head",
            "the task's default",
            lambda config: put(config, {"model.head": config.model.head or DEFAULT_HEAD}),
        )
    ),
    left_out(("mixup", "cutmix", "erase"), "every pixel has a class of its own"),
)
