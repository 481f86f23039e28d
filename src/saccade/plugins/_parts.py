"""Find the blocks of a model and their parts by the names in libraries."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

MLP_NAMES = ("mlp", "mlp_channels", "ffn", "feed_forward", "channel_mixer")
ATTENTION_NAMES = ("attn", "attention", "self_attn", "self_attention", "attn_out", "token_mixer")
MASK_NAMES = ("attention_mask", "src_key_padding_mask", "tgt_key_padding_mask", "key_padding_mask", "padding_mask")
CLASS_TOKENS = ("cls_token", "class_token", "class_embedding")
# Modules with an MLP that are not transformer blocks.
CLASS_ONLY = ("ClassAttn", "ClassAttention", "ClassBlock")
POOLING = ("AttentionPool", "PoolingHead")
TOKENISERS = ("patch_embed", "embeddings")
OWN_PLACES = ("create_position_ids_from_input_ids", "create_position_ids_from_inputs_embeds")
WINDOWED = ("Swin", "Window", "Partition", "Hiera")


class HostError(ValueError):
    """A model's parts were not found, or it does not support a plug-in.

    Args:
        message: the problem.
        advice: what to do when attaching a plug-in.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.message, self.advice = message, advice


@dataclass(frozen=True)
class HookPoint:
    """A module's input or output with a branch's features."""

    path: str  # path of the module
    side: Literal["input", "output"]  # side of the module
    dim: int  # channels of the features
    channels_first: bool = False  # layout B, C, ...; otherwise channels last


@dataclass(frozen=True)
class Block:
    """Hook points of a transformer block."""

    path: str  # path of the block
    front: HookPoint  # before the MLP's first layer
    middle: HookPoint  # before the MLP's last layer, after its activation
    end: HookPoint  # after the MLP, before the residual sum
    attention: HookPoint | None  # after the attention branch, if any
    windowed: bool  # whether attention is windowed
    prefix_tokens: int = 0  # number of prefix tokens (class, distillation, register) in this block
    obstacle: str | None = None  # reason if a sample's tokens are not together along axis 1


@dataclass(frozen=True)
class MaskTaker:
    """A module whose forward takes a token mask: the argument's name and position."""

    path: str
    name: str
    position: int

    def pick(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the mask of a call, by position or keyword."""
        return args[self.position] if len(args) > self.position else kwargs.get(self.name)


def find_paths(model: nn.Module) -> Iterator[str]:
    """Yield the paths of transformer blocks."""
    found = ""
    for path, module in model.named_modules():
        if not path or not _mlp_of(module) or has_name(module, CLASS_ONLY + POOLING):
            continue
        # MLPs inside a block (e.g. of a position bias) or inside the tokeniser are not blocks.
        if (found and path.startswith(f"{found}.")) or any(part in TOKENISERS for part in path.split(".")):
            continue
        found = path
        yield path


def named_paths(model: nn.Module, blocks: str | Sequence[str]) -> list[str]:
    """Return the checked paths of given blocks."""
    if isinstance(blocks, str):
        parent = get_module(model, blocks)
        blocks = [f"{blocks}.{name}" for name, _ in parent.named_children()]
    for path in blocks:
        if not _mlp_of(get_module(model, path)):
            children = ", ".join(name for name, _ in get_module(model, path).named_children()) or "none"
            raise HostError(
                f"blocks= names {path!r}, but no MLP was found in it: its children are {children}, expected "
                f"{', '.join(MLP_NAMES)}, intermediate + output, linear1 + linear2"
            )
    return list(blocks)


def get_module(model: nn.Module, path: str) -> nn.Module:
    """Return a module by path, or raise an error that lists the modules."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        top = ", ".join(name for name, _ in model.named_children())
        raise HostError(
            f"blocks= names {path!r}, which is not in {type(model).__name__}; its children are {top}"
        ) from None


def has_name(module: nn.Module, words: Sequence[str]) -> bool:
    """Whether a module's class name contains one of the words."""
    return any(word in type(module).__name__ for word in words)


def _mlp_of(module: nn.Module) -> tuple[str, str, str] | None:
    """Return the names of the first, middle and last module of a block's MLP."""
    children = dict(module.named_children())
    if {"ffn", "ffn_output"} <= children.keys():  # ALBERT
        return "ffn", "ffn_output", "ffn_output"
    for name in MLP_NAMES:
        if name in children and (layers := _layers(children[name])):
            return name, ".".join(filter(None, (name, layers[-1]))), name
    if {"intermediate", "output"} <= children.keys() and hasattr(children["output"], "dense"):
        return "intermediate", "output.dense", "output.dense"
    if {"linear1", "linear2", "self_attn"} <= children.keys():
        return "linear1", "linear2", "linear2"
    return None


def _layers(module: nn.Module) -> list[str]:
    """Return the names of layers with a weight matrix, in order of registration; not those inside of such a layer."""
    found: list[str] = []
    for name, m in module.named_modules():
        if getattr(getattr(m, "weight", None), "ndim", 0) >= 2 and not (found and name.startswith(f"{found[-1]}.")):
            found.append(name)
    return found


def describe_block(model: nn.Module, path: str, prefix_tokens: int) -> Block:
    """Return the hook points of a block."""
    module = model.get_submodule(path)
    names = _mlp_of(module)
    assert names is not None
    opening, last, closing = names
    end = _place(module, path, closing, "output", layer=last)
    return Block(
        path=path,
        front=_place(module, path, opening, "input"),
        middle=_place(module, path, last, "input"),
        end=end,
        attention=_attention(module, path, end),
        windowed=has_name(module, WINDOWED) or hasattr(module, "window_size"),
        prefix_tokens=prefix_tokens,
        obstacle=_obstacle(model, path),
    )


def _place(
    block: nn.Module, path: str, name: str, side: Literal["input", "output"], *, layer: str | None = None
) -> HookPoint:
    """Return the hook point of a module's side, whose width is from the nearest layer with weights."""
    if layer is None:
        inner = _layers(block.get_submodule(name))
        layer = ".".join(filter(None, (name, inner[0] if side == "input" else inner[-1])))
    weighted: Any = block.get_submodule(layer)
    convolution = isinstance(weighted, nn.Conv1d | nn.Conv2d)
    if hasattr(weighted, "nf"):  # GPT-2's transposed linear layer
        dim = weighted.weight.shape[0 if side == "input" else 1]
    elif convolution:
        dim = weighted.in_channels if side == "input" else weighted.out_channels
    else:
        dim = weighted.weight.shape[1 if side == "input" else 0]
    return HookPoint(f"{path}.{name}", side, dim, channels_first=convolution)


def _attention(block: nn.Module, path: str, end: HookPoint) -> HookPoint | None:
    for name in ATTENTION_NAMES:
        inner = getattr(block, name, None)
        if inner is None or (name == "token_mixer" and not has_name(inner, ("Attention", "Attn"))):
            continue
        # BERT-like attention modules include the residual sum: the branch ends at their dense layer.
        if hasattr(getattr(inner, "output", None), "dense"):
            name = f"{name}.output.dense"
        elif hasattr(inner, "dense") and hasattr(inner, "LayerNorm"):
            name = f"{name}.dense"
        layers = [".".join(filter(None, (name, layer))) for layer in _layers(block.get_submodule(name))]
        out = [layer for layer in layers if layer.endswith(("proj", "out", "dense"))] or layers
        convolution = bool(out) and isinstance(block.get_submodule(out[-1]), nn.Conv2d)
        return HookPoint(f"{path}.{name}", "output", end.dim, channels_first=convolution)
    return None


def _obstacle(model: nn.Module, path: str) -> str | None:
    module = model.get_submodule(path)
    if any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in module.modules()):
        return "its tokens are in front of the batch dimension; build it with batch_first=True"
    if chunk := getattr(module, "chunk_size_feed_forward", 0):
        return f"chunk_size_feed_forward={chunk} splits texts into chunks; set it to 0"
    above = [model.get_submodule(parent) for parent in _parents(path)]
    if any(type(m).__name__ == "MobileVitBlock" for m in above):
        return "it folds the pixels of a patch into the batch, so no block sees a whole image"
    return None


def _parents(path: str) -> list[str]:
    """Return the paths of enclosing modules, outermost first; the model itself is ''."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts))]


def count_prefix(model: nn.Module, paths: Sequence[str]) -> tuple[list[int], int]:
    """Count prefix tokens in each block and in the final features."""
    if find_joint(model) is not None:
        return [0] * len(paths), 0
    counts = (getattr(module, "num_prefix_tokens", None) for module in (model, *model.children()))
    given = next((count for count in counts if isinstance(count, int)), None)
    late = any(has_name(m, CLASS_ONLY) for m in model.modules())  # the class token is added after the blocks
    for path, module in model.named_modules():
        if not (count := _class_tokens(module)):
            continue
        total = count if given is None else given
        below = [not path or block.startswith(f"{path}.") for block in paths]
        everywhere = not any(below)  # it is part of an embedding
        return [total if (everywhere or inside) and not late else 0 for inside in below], total
    return [given or 0] * len(paths), given or 0


def _class_tokens(module: nn.Module) -> int:
    found = (token for name in CLASS_TOKENS if isinstance(token := getattr(module, name, None), Tensor))
    token = next(found, None)
    if token is None:
        return 0
    registers = getattr(module, "register_tokens", None)
    return (
        (token.shape[1] if token.ndim == 3 else 1)
        + int(getattr(module, "distillation_token", None) is not None)
        + (registers.shape[1] if isinstance(registers, Tensor) and registers.ndim == 3 else 0)
    )


def find_joint(model: nn.Module) -> MaskTaker | None:
    """Find the embedding of a model with a joint sequence of text and image."""
    for path, module in model.named_modules():
        if hasattr(module, "text_embeddings") and hasattr(module, "patch_embeddings"):
            return _mask_taker(model, path)
    return None


def is_causal(model: nn.Module, paths: Sequence[str]) -> bool:
    """Whether attention is causal.

    Detected by the attention module, by a stored lower triangular mask (GPT), or by a classifier of every token called
    `score`, which only Hugging Face's language models have.
    """
    if hasattr(model, "base_model") and isinstance(getattr(model, "score", None), nn.Module):
        return True
    inside = [module for path in paths for module in get_module(model, path).modules()]
    return any(getattr(module, "is_causal", False) is True for module in inside) or any(
        _is_triangle(kept) for module in inside for kept in module.buffers(recurse=False)
    )


def _is_triangle(mask: Tensor) -> bool:
    if mask.ndim < 2 or mask.is_meta or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return False
    corner = mask.flatten(0, -3)[0] if mask.ndim > 2 else mask
    return bool((corner[0, 0] == corner[1, 0]) & (corner[0, 1] == 0) & (corner[1, 0] == 1))


def takes_positions(model: nn.Module) -> bool:
    """Whether a text model counts positions including padding, and accepts `position_ids`."""
    if "position_ids" not in inspect.signature(model.forward).parameters or find_joint(model) is not None:
        return False
    # RoBERTa-like models skip padding themselves.
    return not any(hasattr(module, name) for name in OWN_PLACES for module in model.modules())


def find_mask_takers(model: nn.Module, paths: Sequence[str]) -> Iterator[MaskTaker]:
    """Yield blocks and enclosing modules that take a padding mask."""
    for path in dict.fromkeys(around for block in paths for around in (*_parents(block), block)):
        if taker := _mask_taker(model, path):
            yield taker


def _mask_taker(model: nn.Module, path: str) -> MaskTaker | None:
    names = list(inspect.signature(model.get_submodule(path).forward).parameters)
    return next((MaskTaker(path, name, names.index(name)) for name in MASK_NAMES if name in names), None)
