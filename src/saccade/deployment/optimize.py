"""Optimize a model for inference: an equivalent, faster copy."""

import copy
import platform
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from timm.layers import DropBlock2d, DropPath, to_2tuple
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..kernels import Guard, strip
from .folding import Change, Undo, bias_folds, folds, hooked, replacement, run, tensors_of, wide
from .graph import shortened

HALF = (torch.float16, torch.bfloat16)
DROPS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, DropPath, DropBlock2d)
NARROW, WIDE = 128, 512  # range of in_features for which a transposed weight layout is assumed to be faster


@torch.inference_mode(False)  # inference tensors could not be modified later
def optimize(
    model: nn.Module,
    example: Tensor | tuple[Any, ...] | None = None,
    *,
    compile: bool = False,
    tolerance: float = 1e-4,
    kernels: str = "auto",
) -> nn.Module:
    """Return a faster copy of a model that computes the same function in evaluation mode.

    Dropout is removed, batch norms and layer scales are folded into adjacent layers if a run of the example shows that
    nothing else reads the tensors between them, and weights are stored in the layout that is fastest on the device.
    Changes that move the output beyond the tolerance are undone. The given model is not modified.

    Args:
        model: any module on one device, optionally with plug-ins.
        example: arguments of the model: a tensor or a tuple; default: a random image of the size in the model's
            `pretrained_cfg`.
        compile: compile the copy with `torch.compile`; on a GPU, calls are replayed as CUDA graphs from the third call
            of each shape on.
        tolerance: largest allowed difference of an output, relative to the largest output.
        kernels: "auto", "off", or names of `saccade kernels`, "-NAME" for all but one.

    Returns:
        The copy, in evaluation mode, without gradients, in the given model's precision. Half-precision models are
        changed and compared in float32.
    """
    precision = _check(model, tolerance)
    fast = _copied(model)
    args = _arguments(model, example)
    expected = _first_answer(fast, args, made=example is None)
    _require(_difference(_answer(fast, args), expected), tolerance, "a second run of the model itself")

    def same() -> bool:
        try:
            return _difference(_answer(fast, args), expected) <= tolerance
        except Exception:  # a change may break the model in any way
            return False

    _keep_equal(_without_drops(fast), same)
    _keep_equal(folds(fast, args, backward=True), same)
    _keep_equal(folds(fast, args, backward=False), same)
    on_gpu = any(tensor.is_cuda for tensor in args if isinstance(tensor, Tensor))
    if on_gpu:
        _keep_equal(bias_folds(fast, args), same)
    _keep_equal(_layouts(fast), same)
    _require(_difference(_answer(fast, args), expected), tolerance, "the optimized copy's answer")
    if precision in HALF:
        fast.to(precision)
    guard = Guard(fast, "infer", kernels)  # after folding, which only knows plain classes
    if not compile:
        guard.run(lambda: run(fast, _in_precision(args, precision)))
        if precision not in HALF and not same() and guard.names:
            guard.leave_out("its answer differs")
        return fast
    compiled = _compiled(fast, guard, on_gpu=on_gpu)
    if precision not in HALF:
        _require(_difference(_answer(compiled, args), expected), tolerance, "the compiled copy's answer")
    return compiled


def _compiled(fast: nn.Module, guard: Guard, *, on_gpu: bool) -> nn.Module:
    """Compile a copy; if a kernel fails, it is recompiled without kernels."""
    compiled: Any = torch.compile(fast, mode="reduce-overhead") if on_gpu else torch.compile(fast)
    if on_gpu:
        compiled.register_forward_hook(_own_answer)
    if guard.names:
        inner = compiled.forward
        compiled.forward = lambda *args, **kwargs: guard.run(lambda: inner(*args, **kwargs))
    return compiled


def _in_precision(args: tuple[Any, ...], precision: torch.dtype | None) -> tuple[Any, ...]:
    """Convert arguments to the copy's final precision."""
    return tree_map_only(Tensor, lambda x: x.to(precision) if x.is_floating_point() else x, args)


def _own_answer(module: nn.Module, args: Any, answer: Any) -> Any:  # noqa: ARG001
    """Copy the output of a CUDA graph, which the next replay overwrites."""
    return tree_map_only(Tensor, Tensor.clone, answer)


def _keep_equal(changes: Sequence[Change], same: Callable[[], bool]) -> None:
    """Apply all changes if the output stays equal, else those that keep it equal one by one."""
    undos = [change() for change in changes]
    if not undos or same():
        return
    for undo in reversed(undos):
        undo()
    for change in changes:
        undo = change()
        if not same():
            undo()


def _without_drops(model: nn.Module) -> list[Change]:
    drops = [module for module in model.modules() if type(module) in DROPS and not hooked(module)]
    return [replacement(model, drop, nn.Identity()) for drop in drops]


def _layouts(model: nn.Module) -> list[Change]:
    """Return layout changes: channels-last convolutions, and transposed linear weights for Arm CPUs."""
    changes: list[Change] = []
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Conv2d) and isinstance(weight, Tensor):
            changes.append(_laid(weight, lambda w: w.contiguous(memory_format=torch.channels_last)))
        elif type(module) is nn.Linear and _prefers_transposed(module):
            changes.append(_laid(module.weight, lambda w: w.t().contiguous().t()))
    return changes


def _prefers_transposed(layer: nn.Linear) -> bool:
    # Measured on aarch64: 1 to 5% faster with 192 and 384 inputs, up to 10% slower with 768 and few rows. Not measured
    # elsewhere.
    on_arm = layer.weight.device.type == "cpu" and platform.machine() == "aarch64"
    return on_arm and NARROW <= layer.in_features <= WIDE


def _laid(weight: Tensor, arrange: Callable[[Tensor], Tensor]) -> Change:
    def change() -> Undo:
        was = weight.data
        weight.data = arrange(was)

        def undo() -> None:
            weight.data = was

        return undo

    return change


def _copied(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode, without gradients, in float32."""
    try:
        fast = copy.deepcopy(model)
    except Exception as error:  # arbitrary modules may fail to copy
        raise ValueError(f"{type(model).__name__} cannot be copied by copy.deepcopy: {shortened(error)}") from error
    strip(fast)  # remove kernels of the given model
    fast.eval().requires_grad_(False)
    for parameter in fast.parameters():
        parameter.grad = None
    return fast.float() if any(p.dtype in HALF for p in fast.parameters()) else fast


def _arguments(model: nn.Module, example: Any) -> tuple[Any, ...]:
    """Return arguments for the copy, on the model's device and in the precision of the comparison."""
    if example is None:
        example = torch.randn(_input_shape(model), generator=torch.Generator().manual_seed(0))
    args = example if isinstance(example, tuple) else (example,)
    if not any(isinstance(value, Tensor) for value in args):
        raise TypeError(
            f"example={type(example).__name__}: expected a tensor that the model can be called with, or a tuple of "
            "arguments that contains one"
        )
    first = next(chain(model.parameters(), model.buffers()), torch.empty(0))
    dtype = torch.float32 if first.dtype in HALF or not first.is_floating_point() else first.dtype

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().to(first.device, dtype if value.is_floating_point() else None)

    return tuple(moved(value) for value in args)


def _input_shape(model: Any) -> tuple[int, ...]:
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    size = config.get("input_size") if isinstance(config, Mapping) else getattr(config, "input_size", None)
    if size is None:
        raise ValueError(
            f"{type(model).__name__} has no pretrained_cfg or default_cfg with its input size; give example=, a "
            "tensor that the model can be called with"
        )
    channels, *sides = size
    made_for = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return (2, getattr(model, "in_chans", None) or channels, *(to_2tuple(made_for) if made_for else sides))


def _first_answer(fast: nn.Module, args: tuple[Any, ...], *, made: bool) -> list[Tensor]:
    try:
        output = run(fast, args)
    except Exception as error:  # models can fail in any way on wrong inputs
        shapes = ", ".join(str(tuple(value.shape)) for value in args if isinstance(value, Tensor))
        advice = "give example=, a tensor" if made else "give one of the shape and type"
        raise ValueError(
            f"{type(fast).__name__} fails on an example of shape {shapes}: {shortened(error)}; {advice} that it accepts"
        ) from error
    return tensors_of(output)


def _answer(model: nn.Module, args: tuple[Any, ...]) -> list[Tensor]:
    return tensors_of(run(model, args))


def _difference(answer: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference relative to the largest finite output; NaN or inf if non-finite values differ."""
    if [tensor.shape for tensor in answer] != [tensor.shape for tensor in expected]:
        return float("inf")
    worst, top = [], []
    for a, b in zip(answer, expected, strict=True):
        a, b = wide(a), wide(b)
        equal = (a == b) | (a.isnan() & b.isnan())
        worst.append((a - b).abs().masked_fill(equal, 0).flatten())
        top.append(b.abs().masked_fill(~b.isfinite(), 0).flatten())
    gap, scale = (float(torch.cat(values).max()) if sum(map(len, values)) else 0.0 for values in (worst, top))
    return gap if gap == 0 else gap / max(scale, torch.finfo(torch.float32).tiny)


def _require(difference: float, tolerance: float, what: str) -> None:
    if not difference <= tolerance:
        raise ValueError(
            f"{what} differs from the first by {difference:.2g} of the largest output, more than "
            f"tolerance={tolerance:g}; remove randomness from the model's evaluation mode, give another example= or "
            "raise tolerance="
        )


def _check(model: Any, tolerance: float) -> torch.dtype | None:
    """Refuse models that cannot be optimized; return the parameters' dtype."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"optimize takes a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        raise TypeError(f"optimize takes an eager model, got {type(model).__name__}; compile or script it afterwards")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance={tolerance}: expected a fraction of the largest output, between 0 and 1")
    tensors = list(chain(model.parameters(), model.buffers()))
    if any(tensor.is_meta for tensor in tensors):
        raise ValueError(f"{type(model).__name__} has weights on the meta device, which have no values; load them")
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1:
        raise ValueError(f"{type(model).__name__} is on {', '.join(devices)}; move it to one device with model.to()")
    kinds = sorted({p.dtype for p in model.parameters() if p.is_floating_point()}, key=str)
    if len(kinds) > 1:
        raise ValueError(
            f"{type(model).__name__} has parameters in {', '.join(map(str, kinds))}; convert them to one "
            "precision first"
        )
    return kinds[0] if kinds else None
