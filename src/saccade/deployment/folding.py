"""Fold batch norms and layer scales into adjacent layers, if nothing else reads the tensors between them."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
from timm.layers import BatchNormAct2d, Conv2dSame, LayerScale
from timm.models import vision_transformer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..layers.depthwise import DepthwiseConv
from ..layers.downsample import PatchConv
from ..layers.numerics import line_of
from ..plugins.attach import HOOKS

Undo = Callable[[], None]
Change = Callable[[], Undo]
Modules = dict[nn.Module, int]  # modules with their channel axis

# Layers that are linear in their weight and add their bias last, with the channel axis of their output. Exact types:
# subclasses may transform their weight.
LAYERS: dict[type[nn.Module], int] = {
    nn.Linear: -1,
    nn.Conv1d: -2,
    nn.Conv2d: -3,
    nn.Conv3d: -4,
    Conv2dSame: -3,
    PatchConv: -3,
    DepthwiseConv: -1,
}
CONVOLUTIONS = (nn.Conv2d, DepthwiseConv)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNormAct2d)
LAYER_SCALES = (LayerScale, vision_transformer.LayerScale)  # one class or two, depending on timm's version


def folds(model: nn.Module, args: tuple[Any, ...], *, backward: bool) -> list[Change]:
    """Find norms and scales that can be folded into the previous layer, or else into the next."""
    affine = {m: found for m in model.modules() if not hooked(m) and (found := _affine(m)) is not None}
    norms = {norm: found.axis for norm, found in affine.items() if backward or not isinstance(norm, BatchNormAct2d)}
    layers = {m: LAYERS[type(m)] for m in model.modules() if type(m) in LAYERS and not hooked(m)}
    if not backward:
        layers = {layer: axis for layer, axis in layers.items() if _reads_plainly(layer)}
    if backward:
        pairs = _joined(model, args, layers, norms)
    else:
        pairs = [(layer, norm) for norm, layer in _joined(model, args, norms, layers)]
    return [_fold(model, layer, norm, affine[norm], backward=backward) for layer, norm in pairs]


def _joined(model: nn.Module, args: tuple[Any, ...], makers: Modules, takers: Modules) -> list[tuple[Any, Any]]:
    """Return pairs of producer and consumer without other readers; empty if tensors cannot be followed."""
    if not makers or not takers:
        return []
    flow = Flow(makers, takers)
    try:
        flow.follow(model, args)
    except Exception:  # not every tensor can be followed; then nothing is folded
        return []
    return flow.pairs()


def bias_folds(model: nn.Module, args: tuple[Any, ...]) -> list[Change]:
    """Find convolutions whose bias can be moved into the linear layer that is their output's only reader.

    On a GPU, compiled code adds a convolution's bias in a separate kernel.
    """
    convolutions = {m: LAYERS[type(m)] for m in model.modules() if type(m) in CONVOLUTIONS and not hooked(m)}
    convolutions = {m: axis for m, axis in convolutions.items() if m.bias is not None}
    linear: dict[nn.Module, int] = {m: -1 for m in model.modules() if type(m) is nn.Linear and not hooked(m)}
    return [_move_bias(conv, layer) for conv, layer in _joined(model, args, convolutions, linear)]


def _move_bias(conv: Any, layer: Any) -> Change:
    def change() -> Undo:
        was = conv.bias, layer.bias
        shift = wide(conv.bias)
        _, bias = _scale_inputs(layer, _Affine(torch.ones_like(shift), shift, -1))
        conv.bias = None
        layer.bias = nn.Parameter(cast(Tensor, bias).to(layer.weight), requires_grad=False)

        def undo() -> None:
            conv.bias, layer.bias = was

        return undo

    return change


def _reads_plainly(layer: nn.Module) -> bool:
    """Whether a layer's output is linear in its input everywhere; zero padding would not be normalised."""
    padding: Any = getattr(layer, "padding", 0)
    unpadded = padding in (0, "valid") or (isinstance(padding, tuple) and not any(padding))
    return type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d) and unpadded


@dataclass(frozen=True)
class _Affine:
    """A channelwise affine map: `scale` and `shift` along an axis."""

    scale: Tensor
    shift: Tensor | None
    axis: int


def _affine(module: nn.Module) -> _Affine | None:
    """Return the affine map of a norm or scale in evaluation mode, in float64; None for other modules."""
    kept: Any = module
    if type(module) in LAYER_SCALES:
        return _Affine(wide(kept.gamma), None, -1)
    if type(module) not in BATCH_NORMS or kept.running_mean is None or kept.running_var is None:
        return None
    return _Affine(*line_of(kept, wide), 1)


def _fold(model: nn.Module, layer: Any, norm: Any, affine: _Affine, *, backward: bool) -> Change:
    rest = nn.Sequential(norm.drop, norm.act) if isinstance(norm, BatchNormAct2d) else nn.Identity()
    replace = replacement(model, norm, rest)

    def change() -> Undo:
        was = layer.weight, layer.bias
        back = replace()
        weight, bias = (_scale_outputs if backward else _scale_inputs)(layer, affine)
        layer.weight = nn.Parameter(weight.to(was[0]), requires_grad=False)
        layer.bias = None if bias is None else nn.Parameter(bias.to(was[0]), requires_grad=False)

        def undo() -> None:
            back()
            layer.weight, layer.bias = was

        return undo

    return change


def _scale_outputs(layer: Any, affine: _Affine) -> tuple[Tensor, Tensor | None]:
    """Return a layer's weight and bias with a following affine map folded in."""
    weight = wide(layer.weight)
    weight = weight * affine.scale.view(-1, *[1] * (weight.ndim - 1))
    bias = None if layer.bias is None else wide(layer.bias) * affine.scale
    if affine.shift is None:
        return weight, bias
    return weight, affine.shift if bias is None else bias + affine.shift


def _scale_inputs(layer: Any, affine: _Affine) -> tuple[Tensor, Tensor | None]:
    """Return a layer's weight and bias with a preceding affine map folded in."""
    weight = wide(layer.weight)
    bias = None if layer.bias is None else wide(layer.bias)
    groups = getattr(layer, "groups", 1)
    each = (groups, 1, -1, *[1] * (weight.ndim - 2))  # each group of outputs reads a group of inputs
    grouped = weight.unflatten(0, (groups, -1))
    if affine.shift is not None:
        added = (grouped * affine.shift.view(each)).flatten(2).sum(2).flatten()
        bias = added if bias is None else bias + added
    return (grouped * affine.scale.view(each)).flatten(0, 1), bias


def replacement(model: nn.Module, old: nn.Module, new: nn.Module) -> Change:
    """Return the change that replaces a module wherever it is registered."""

    def change() -> Undo:
        places = [(parent, name) for parent in model.modules() for name, m in parent._modules.items() if m is old]
        new.train(old.training)
        for parent, name in places:
            parent._modules[name] = new

        def undo() -> None:
            for parent, name in places:
                parent._modules[name] = old

        return undo

    return change


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float64 on the CPU, since not every device supports it."""
    return tensor.detach().cpu().double()


def hooked(module: nn.Module) -> bool:
    """Whether a module has hooks."""
    return any(getattr(module, hooks) for hooks in HOOKS)


class Flow(TorchDispatchMode):
    """Records producers and readers of tensors between two sets of modules in one run of a model.

    Tensors are identified by their storage, so that readers of views are found; they are kept alive, so that their
    memory is not reused.

    Args:
        makers: producers, with the channel axis of their output.
        takers: possible consumers, with the channel axis of their input.
    """

    def __init__(self, makers: Modules, takers: Modules) -> None:
        super().__init__()
        self.makers, self.takers = makers, takers
        self.running: list[nn.Module] = []
        self.readers: dict[int, set[nn.Module | None]] = defaultdict(set)
        self.made: dict[int, tuple[nn.Module, Tensor]] = {}
        self.taken: dict[nn.Module, list[Tensor | None]] = defaultdict(list)

    def follow(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """Run the model and record."""
        handles = []
        for module in chain(self.makers, self.takers):
            handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with self:
                output = run(model, args)
        finally:
            for handle in handles:
                handle.remove()
        for tensor in tensors_of(output):
            self.readers[_storage(tensor)].add(None)  # read by the caller

    def pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return pairs of producer and consumer such that the consumer is the only reader of all outputs."""
        outputs: dict[nn.Module, list[int]] = defaultdict(list)
        for key, (maker, _) in self.made.items():
            outputs[maker].append(key)
        found = []
        for taker, inputs in self.taken.items():
            makers = {self._maker(tensor, taker) for tensor in inputs}
            source = makers.pop()
            if makers or source is None or not self._private(source) or not self._private(taker):
                continue
            if all(self.readers[key] == {taker} for key in outputs[source]):
                found.append((source, taker))
        return found

    def _maker(self, tensor: Tensor | None, taker: nn.Module) -> nn.Module | None:
        """Return the producer of a consumer's input, if it is the complete output with an unchanged channel axis."""
        if tensor is None or _storage(tensor) not in self.made:
            return None
        maker, output = self.made[_storage(tensor)]
        given, got = self.makers[maker] % output.ndim, self.takers[taker] % tensor.ndim
        if tensor.shape == output.shape and tensor.stride() == output.stride():
            return maker if given == got else None
        # A sequence reshaped to a map: channels stay the last axis.
        last = given == output.ndim - 1 and got == tensor.ndim - 1 and tensor.shape[-1] == output.shape[-1]
        whole = tensor.is_contiguous() and output.is_contiguous() and tensor.numel() == output.numel()
        return maker if last and whole else None

    def _private(self, module: nn.Module) -> bool:
        """Whether a module is the only reader of its parameters and buffers."""
        return all(
            self.readers[_storage(tensor)] <= {module} for tensor in chain(module.parameters(), module.buffers())
        )

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.running.append(module)
        if module in self.takers:
            alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
            self.taken[module].append(args[0] if alone else None)

    def _leave(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self.running.pop()
        if module in self.makers and isinstance(output, Tensor):
            key = _storage(output)
            self.made[key] = (module, output)
            self.readers[key] = set()  # earlier readers of this memory read intermediate results or another tensor

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not getattr(func, "is_view", False):  # views do not read; their readers are recorded
            reader = self.running[-1] if self.running else None
            for value in tree_leaves((args, kwargs or {})):
                if isinstance(value, Tensor):
                    self.readers[_storage(value)].add(reader)
        return func(*args, **(kwargs or {}))


def run(model: nn.Module, args: tuple[Any, ...]) -> Any:
    """Call a model without gradients."""
    with torch.no_grad():  # on copies, since a model may modify its input
        return model(*(value.clone() if isinstance(value, Tensor) else value for value in args))


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output, which may be nested."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for key in output for tensor in tensors_of(output[key])]
    if isinstance(output, list | tuple) and output:
        return [tensor for value in output for tensor in tensors_of(value)]
    raise TypeError(
        f"the model returned {type(output).__name__} where a tensor was expected; optimize compares outputs that are "
        "tensors, or dicts, lists and tuples of them: wrap the model so that it returns one of these"
    )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
