"""Identify the model of a state dict."""

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Any

import timm
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

FILLING = ("normal_", "uniform_", "zero_", "fill_", "mul_", "add_", "sub_", "div_", "erfinv_", "clamp_")
# Keys that identify other families.
STRANGERS = {
    "layers.0.blocks.0.attn.relative_position_bias_table": "a Swin Transformer",
    "patch_embed.proj.weight": "a plain vision transformer (ViT, DeiT, BEiT, ...)",
    "layer1.0.conv1.weight": "a ResNet",
    "stages.0.blocks.0.conv_dw.weight": "a ConvNeXt",
    "features.0.0.weight": "a torchvision network",
    "conv_stem.weight": "an EfficientNet or MobileNet",
    "embeddings.word_embeddings.weight": "a BERT-like text model",
    "wte.weight": "a GPT-like text model",
}


class Unfilled(TorchFunctionMode):
    """Skip initialisation in constructors, which takes most of their time."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the tensor of initialisation functions unchanged; call other functions."""
        if getattr(func, "__name__", "") in FILLING and args:
            return args[0]
        return func(*args, **(kwargs or {}))


def list_backbones() -> list[str]:
    """Return the names of saccade's backbones, as registered with timm."""
    return [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("saccade.")]


def require_model(name: str) -> str:
    """Return a model's name if timm knows it, or raise an error with suggestions."""
    if timm.is_model(name.split(".")[0]):
        return name
    near = difflib.get_close_matches(name, timm.list_models(), n=3)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "`saccade models` lists saccade's models, timm.list_models() all others"
    )
    raise ValueError(f"unknown model {name!r}; {hint}")


def resolve_name(name: str) -> str:
    """Return a model's full name: `vit_tiny` is short for timm's `vit_tiny_patch16_224`."""
    for full in (name, f"{name}_patch16_224", f"{name}_patch4_window7_224"):
        if timm.is_model(full.split(".")[0]):
            return full
    return require_model(name)


def describe(state_dict: Mapping[str, Tensor]) -> str:
    """Describe a state dict: the best fitting backbone, another kind of network, or its keys."""
    scores = {name: _overlap(name, state_dict) for name in list_backbones()}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] > 0.98:
        return best
    if scores[best] > 0.5:
        return f"a variant of {best} ({scores[best]:.0%} of the weights agree with it)"
    for key, kind in STRANGERS.items():
        if any(name.endswith(key) for name in state_dict):
            return f"{kind}, none of saccade's"
    first = ", ".join(list(state_dict)[:3])
    return f"an unknown network (first keys: {first})"


@cache
def _without_memory(name: str) -> Any:
    with torch.device("meta"), Unfilled():
        return timm.create_model(name)


def _overlap(name: str, state_dict: Mapping[str, Tensor]) -> float:
    """Fraction of the keys of file and model that match in name and shape, without classifiers."""
    model = _without_memory(name)
    if model.is_official(state_dict):
        state_dict = model.convert(state_dict)

    def shapes(tensors: Mapping[str, Tensor]) -> set[tuple[str, torch.Size]]:
        return {(k, v.shape) for k, v in tensors.items() if not k.startswith(tuple(model.classifier))}

    file, own = shapes(state_dict), shapes(model.state_dict())
    return len(file & own) / max(len(file | own), 1)
