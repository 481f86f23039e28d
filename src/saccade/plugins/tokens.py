"""Detect a model's blocks, grid, prefix tokens, masks and layout."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ._modules import (
    attends_channels,
    count_heads,
    count_objects,
    find_attention,
    find_embedding,
    is_attention,
    is_attentive,
    overlaps_windows,
    reads_text,
    reorders_tokens,
)
from ._parts import (
    MLP_NAMES,
    Block,
    HookPoint,
    HostError,
    MaskTaker,
    count_prefix,
    describe_block,
    find_joint,
    find_mask_takers,
    find_paths,
    has_name,
    is_causal,
    named_paths,
)

__all__ = [
    "Block",
    "HookPoint",
    "Host",
    "HostError",
    "Layout",
    "MaskTaker",
    "Tokens",
    "attends_channels",
    "count_heads",
    "count_objects",
    "find_attention",
    "find_embedding",
    "find_host",
    "find_layers",
    "guess_grid",
    "is_attention",
    "is_attentive",
    "overlaps_windows",
    "read_tokens",
    "reorders_tokens",
    "require_blocks",
    "split_tokens",
]

Layout = Literal["NLC", "NHWC", "NCHW"]
LAYOUTS = ("NLC", "NHWC", "NCHW")

# Class names in libraries.
CLASS_OUTPUT = ("PoolingVisionTransformer",)  # forward_features only returns class tokens
STEPS = ("Block", "Bottleneck", "InvertedResidual", "EncoderLayer")  # blocks of networks without attention


@dataclass(frozen=True)
class Host:
    """A model with its detected parts."""

    model: nn.Module  # the model itself
    blocks: tuple[Block, ...]  # its transformer blocks in order; empty for a convolutional network
    prefix_tokens: int  # prefix tokens in the last block
    layout: Layout  # the layout of the final features
    text: bool  # whether it is a text model, with a padding mask and no grid
    # paths of blocks whose output feeds a pyramid, if known
    feeding: frozenset[str] = field(default_factory=frozenset)
    grid: tuple[int, int] | None = None  # the token grid, if not determined by the image size
    output_prefix: int = 0  # prefix tokens in the final features
    causal: bool = False  # whether attention is causal
    # joint embedding of text and image, which takes the text's mask
    joint: MaskTaker | None = None
    mask_takers: tuple[MaskTaker, ...] = ()  # modules that take a padding mask, outermost first

    @property
    def name(self) -> str:
        """The model's name for messages."""
        cfg = getattr(self.model, "pretrained_cfg", None) or {}
        return cfg.get("architecture") or type(self.model).__name__


def find_host(
    model: nn.Module,
    *,
    blocks: str | Sequence[str] | None = None,
    grid: tuple[int, int] | None = None,
    prefix_tokens: int | None = None,
    layout: Layout | None = None,
) -> Host:
    """Detect a model's parts; given ones are used unchanged.

    Args:
        model: a timm model, a Hugging Face model, or any module built of transformer blocks.
        blocks: paths of the blocks, or the path of the list that holds them.
        grid: height and width of the token grid.
        prefix_tokens: number of prefix tokens.
        layout: layout of the final features.
    """
    if layout is not None and layout not in LAYOUTS:
        raise HostError(f"layout={layout!r} was given; allowed are {', '.join(LAYOUTS)}")
    paths = named_paths(model, blocks) if blocks is not None else list(find_paths(model))
    if prefix_tokens is None:
        inside, final = count_prefix(model, paths)
    else:
        inside, final = [prefix_tokens] * len(paths), prefix_tokens
    found = tuple(describe_block(model, path, count) for path, count in zip(paths, inside, strict=True))
    return Host(
        model=model,
        blocks=found,
        prefix_tokens=inside[-1] if inside else 0,
        layout=layout or _layout(model, found),
        text=reads_text(model),
        feeding=frozenset(_feeding(model, paths)),
        grid=grid,
        output_prefix=final,
        causal=is_causal(model, paths),
        joint=find_joint(model),
        mask_takers=tuple(find_mask_takers(model, paths)),
    )


def require_blocks(host: Host, plugin: str) -> None:
    """Raise if the model has no blocks."""
    if not host.blocks:
        raise HostError(
            f"{plugin} needs transformer blocks, but found none in {host.name}. Looked for modules with a child "
            f"named {', '.join(MLP_NAMES)}, or children `intermediate` and `output` with a `dense` layer, or "
            "`linear1` and `linear2`. If it has blocks under other names, pass blocks=['path.to.block', ...] (each "
            "with such an MLP) and prefix_tokens=, layout=, grid= where they cannot be detected; a plain "
            "convolutional network has no tokens"
        )


@dataclass(frozen=True)
class Tokens:
    """Final features, split into prefix and patch tokens."""

    words: Tensor  # B, N, C in row-major order of the grid
    prefix: Tensor | None  # B, P, C; None without prefix tokens
    grid: tuple[int, int] | None  # height and width; None for text

    def as_map(self) -> Tensor:
        """Return the patch tokens as B, C, H, W."""
        if self.grid is None:
            raise HostError("the tokens of a text have no grid")
        return self.words.transpose(1, 2).unflatten(2, self.grid)


def read_tokens(host: Host, images: Tensor) -> Tokens:
    """Run a vision model on images and return its final tokens, normalised as for its head."""
    model: Any = host.model
    size = (images.shape[2], images.shape[3])
    if host.text:
        raise HostError(f"{host.name} reads text: its tokens cannot be read from images alone")
    if type(model).__name__ in CLASS_OUTPUT:
        prefix, (words,) = model.forward_intermediates(images, indices=1)
        tokens = split_tokens(words, layout="NCHW")
        return Tokens(model.norm(tokens.words), prefix, tokens.grid)
    if hasattr(model, "forward_features"):
        features = model.forward_features(images)
    elif hasattr(model, "base_model") and hasattr(model, "config"):
        features = model.base_model(images, **_any_size(model.base_model, size)).last_hidden_state
    else:
        features = model(images)
    if hasattr(getattr(model, "feature_info", None), "module_name"):
        features = features[-1]  # features_only: the coarsest map
        features = features[0] if isinstance(features, tuple) else features
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise HostError(f"{host.name} returned {shape} as final features; they must be tokens B, N, C or a map")
    layout: Layout = "NLC" if features.ndim == 3 else "NHWC" if host.layout == "NHWC" else "NCHW"
    return split_tokens(features, layout=layout, prefix_tokens=host.output_prefix, grid=host.grid, image_size=size)


def split_tokens(
    features: Tensor,
    *,
    layout: Layout,
    prefix_tokens: int = 0,
    grid: tuple[int, int] | None = None,
    image_size: tuple[int, int] | None = None,
) -> Tokens:
    """Split final features into prefix and patch tokens.

    Args:
        features: B, N, C or B, H, W, C or B, C, H, W, according to `layout`.
        layout: layout of the features.
        prefix_tokens: prefix tokens of a sequence; a map B, C, H, W has them in additional channels.
        grid: the grid of a sequence, if known.
        image_size: height and width of the images, to infer the grid.
    """
    if layout == "NCHW":
        words = features.flatten(2).transpose(1, 2)
        grid = (features.shape[2], features.shape[3])
        if not prefix_tokens:
            return Tokens(words, None, grid)
        words, *prefix_parts = words.chunk(1 + prefix_tokens, dim=2)
        return Tokens(words, torch.stack([part[:, 0] for part in prefix_parts], dim=1), grid)
    if layout == "NHWC":
        return Tokens(features.flatten(1, 2), None, (features.shape[1], features.shape[2]))
    words = features[:, prefix_tokens:]
    prefix = features[:, :prefix_tokens] if prefix_tokens else None
    if grid is None and image_size is not None:
        grid = guess_grid(words.shape[1], image_size)
    return Tokens(words, prefix, grid)


def guess_grid(count: int, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the factors of `count` whose ratio is nearest to the image's."""
    height, width = image_size
    pairs = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
    best = min(pairs, key=lambda pair: abs(pair[0] * width - pair[1] * height))
    cell_h, cell_w = height / best[0], width / best[1]
    if max(cell_h, cell_w) > 1.5 * min(cell_h, cell_w):
        raise HostError(
            f"{count} patch tokens of a {height}x{width} image do not form a grid of near-square cells",
            "pass grid=(rows, columns), or prefix_tokens= if some of them are not patch tokens",
        )
    return best


def _layout(model: nn.Module, blocks: Sequence[Block]) -> Layout:
    fmt = getattr(model, "output_fmt", None)
    if fmt is not None:
        return "NHWC" if "NHWC" in str(fmt) else "NCHW" if "NCHW" in str(fmt) else "NLC"
    if not blocks or hasattr(model, "stages"):
        return "NCHW"
    return "NLC"


def find_layers(model: nn.Module) -> list[str]:
    """Return the paths of a model's transformer blocks, or residual blocks, in order."""
    try:
        blocks = [block.path for block in find_host(model).blocks]
    except HostError:
        blocks = []
    if len(blocks) > 1:
        return blocks
    found: list[str] = []
    for path, module in model.named_modules():
        step = path and has_name(module, STEPS) and not isinstance(module, nn.Sequential)
        if step and not any(path.startswith(f"{outer}.") for outer in found):
            found.append(path)
    if len(found) > 1:
        return found
    info: Any = getattr(model, "feature_info", None)
    if info is not None and not hasattr(info, "module_name"):
        known = dict(model.named_modules())
        return [entry["module"] for entry in info if entry["module"] in known]
    return [name for name, _ in model.named_children()]


def _feeding(model: nn.Module, paths: Sequence[str]) -> Iterator[str]:
    """Yield the blocks whose outputs are feature maps; none for plain columnar models."""
    for root, module in model.named_modules():
        info: Any = getattr(module, "feature_info", None)
        if info is None:
            continue
        if hasattr(info, "module_name"):  # features_only: the selected maps
            stages = info.module_name()
        elif len({entry["reduction"] for entry in info}) > 1:
            stages = [entry["module"] for entry in info]
        else:
            stages = []
        local = {path: _within(path, root) for path in paths}
        for stage in stages:
            names = (f"{stage}.", f"{stage.replace('.', '_')}.")  # timm flattens names in rewritten models
            if inside := [path for path in paths if f"{local[path]}.".startswith(names)]:
                yield inside[-1]
        return


def _within(path: str, root: str) -> str:
    """Return a path relative to `root` and to timm's features_only wrappers."""
    return path.removeprefix(f"{root}." if root else "").removeprefix("model.").removeprefix("body.")


def _any_size(model: nn.Module, size: tuple[int, int]) -> dict[str, bool]:
    """Return arguments that let a Hugging Face model take images of another size."""
    built = getattr(model.config, "image_size", None)
    built = (built, built) if isinstance(built, int) else built
    takes = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    return {"interpolate_pos_encoding": True} if takes and built is not None and tuple(built) != size else {}
