"""Rules of detection on settings."""

from ...settings import TrainConfig
from ...settings.decisions import put
from ..rules import HUGGING_FACE, default_head, left_out, of_timm, own
from .detector import needs_host_sync
from .hosts import DEFAULT_HEAD

LIGHT_HEAD = "mask_rcnn:width=64,hidden=256,sampled=64,proposals=200"  # for a CPU, as in the task's recipe


def _no_graphs(config: TrainConfig) -> TrainConfig:
    return put(config, {"engine.graphs": False}) if needs_host_sync(config.model.head or DEFAULT_HEAD) else config


RULES = (
    own("own-crops", "the task crops images with their boxes", lambda config: put(config, {"augment.crop": "none"})),
    of_timm(own("no-graphs", "the head's steps wait for the device, so CUDA graphs cannot capture them", _no_graphs)),
    HUGGING_FACE,
    default_head(DEFAULT_HEAD, LIGHT_HEAD),
    left_out(("mixup", "cutmix", "erase"), "every object has its own class"),
)
