"""The maps of features inside a network, found while it runs, the last one first."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..layers.second_order import SecondOrder
from ..plugins.tokens import Host, HostError, split_tokens

ATTENTION = ("attn", "attention", "self_attn", "self_attention", "token_mixer")
NO_FEATURES = (nn.Dropout, nn.Softmax)  # modules that attention weights B, heads, N, N may pass


@dataclass(frozen=True)
class Spot:
    """A map of features inside a model, while its graph is there.

    Attributes:
        layer: where it was read.
        tensor: what passed.
        prefix: tokens before the words.
        channels_last: of a map with four axes.
    """

    layer: str
    tensor: Tensor
    prefix: int = 0
    channels_last: bool = False

    def as_map(self, values: Tensor, host: Host, size: tuple[int, int]) -> Tensor:
        """Bring the features or their gradient to B, C, H, W; refuse a map that has not the picture's proportions."""
        if values.ndim == 4:
            rows, columns = values.shape[1:3] if self.channels_last else values.shape[2:]
            even = size[1] / size[0]
            if abs(columns - even * rows) > 1 + even:  # strides round each side by less than one cell
                raise HostError(f"{self.layer} has {rows} x {columns} cells, which are no places of the picture")
        layout: Any = "NLC" if values.ndim == 3 else "NHWC" if self.channels_last else "NCHW"
        fits = host.grid if host.grid and values.shape[1] - self.prefix == host.grid[0] * host.grid[1] else None
        try:
            return split_tokens(values, layout=layout, prefix_tokens=self.prefix, grid=fits, image_size=size).as_map()
        except HostError:  # its words are advice for plug-ins
            count = values.shape[1] - self.prefix
            raise HostError(
                f"{count} word tokens of a {size[0]}x{size[1]} picture form no grid of near-square cells"
            ) from None


@contextmanager
def hear_maps(host: Host, batch: int) -> Iterator[list[Spot]]:
    """Listen to a model; the list fills, when the call is over, with the maps of features, best candidate first.

    With transformer blocks these are the last block's output, the input of its attention, and the output of the block
    before; then every module's output B, C, H, W with more than one place, the last first, but for those inside of
    attention, whose axes are heads and tokens, and those before the first block, which are no late features.
    """
    heard: dict[str, Tensor] = {}
    spots: list[Spot] = []
    names = {module: path for path, module in host.model.named_modules()}

    def after(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, Tensor) and output.ndim in (3, 4) and len(output) == batch and output.is_floating_point():
            heard.pop(names[module], None)
            heard[names[module]] = output

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(given, Tensor) and given.ndim in (3, 4) and len(given) == batch:
            heard[f"input of {names[module]}"] = given

    attention = _last_attention(host)
    hooks = [module.register_forward_hook(after) for module in names]
    if attention is not None:
        hooks.append(attention.register_forward_pre_hook(before, with_kwargs=True))
    try:
        yield spots
    finally:
        for hook in hooks:
            hook.remove()
        inputs = f"input of {names.get(attention)}" if attention is not None else ""
        spots += _from_blocks(host, heard, inputs) + _from_maps(host, heard)


def _last_attention(host: Host) -> nn.Module | None:
    if not host.blocks:
        return None
    block = host.model.get_submodule(host.blocks[-1].path)
    return next((child for name in ATTENTION if isinstance(child := getattr(block, name, None), nn.Module)), None)


def _from_blocks(host: Host, heard: dict[str, Tensor], inputs: str) -> list[Spot]:
    if not host.blocks:
        return []
    last = host.blocks[-1]
    wanted = [(last.path, last), (inputs, last), *((block.path, block) for block in host.blocks[-2:-1])]
    spots = []
    for path, block in wanted:
        if path not in heard:
            continue
        tensor, dim = heard[path], block.end.dim
        last_axis, first_axis = tensor.shape[-1] == dim, tensor.shape[1] == dim
        channels_last = last_axis and (not first_axis or host.layout == "NHWC")
        if _places(tensor, block.prefix_tokens, channels_last=channels_last) > 1:
            spots.append(Spot(path, tensor, block.prefix_tokens, channels_last))
    return spots


def _from_maps(host: Host, heard: dict[str, Tensor]) -> list[Spot]:
    channels_last = host.layout == "NHWC"
    # Covariances, B, heads, d, d, have no places, and queries, B, heads, N, d, none on two axes.
    inner = tuple(
        f"{path}."
        for path, module in host.model.named_modules()
        if isinstance(module, SecondOrder) or path.rpartition(".")[2] in ATTENTION
    )
    paths = list(heard)
    begun = min((paths.index(block.path) for block in host.blocks if block.path in heard), default=0)
    return [
        Spot(path, heard[path], channels_last=channels_last)
        for path in reversed(paths[begun:])
        if (tensor := heard[path]).ndim == 4
        and not path.startswith("input of ")
        and not isinstance(host.model.get_submodule(path), NO_FEATURES)
        and not path.startswith(inner)
        and _places(tensor, 0, channels_last=channels_last) > 1
    ]


def _places(tensor: Tensor, prefix: int, *, channels_last: bool) -> int:
    if tensor.ndim == 3:
        return tensor.shape[1] - prefix
    return tensor.shape[1] * tensor.shape[2] if channels_last else tensor.shape[2] * tensor.shape[3]
