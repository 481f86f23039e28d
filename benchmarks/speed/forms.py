"""Time other forms of a depthwise convolution with what is around it, and of window attention, in compiled training.

    python benchmarks/speed/forms.py conv  # turned, shifted, summed: one form a process, about 60 s of an H200
    python benchmarks/speed/forms.py plain  # aligned, square, fused: of window attention
    DEV=cpu python benchmarks/speed/forms.py turned  # a trial of the script

A figure is the sum of a step's kernels in milliseconds, batch 256 (512 at 16 x 16), bfloat16, channels last. Several
may run side by side: they take turns while they are timed, though not while they compile. In what is printed in
results/forms_h200.txt "turned" still had its bias in an operation of its own, and inference was timed too.
"""

import fcntl
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.kernels import workarounds
from saccade.kernels.ops.depthwise import Turned

DEVICE = os.environ.get("DEV", "cuda")
MAPS = [(256, 56, 192, 3), (256, 28, 384, 3), (256, 14, 768, 3), (512, 16, 192, 3), (256, 56, 64, 5), (256, 14, 256, 5)]
WINDOWS = [(256, 56, 96, 3), (256, 28, 192, 6)]
if DEVICE == "cpu":
    MAPS, WINDOWS = [(2, 8, 16, 3), (2, 8, 16, 5)], [(2, 14, 32, 2)]


def shifted(x: Tensor, weight: Tensor, *, turned: bool = False) -> Tensor:
    """Convolve a map B, H, W, C as a sum of shifted products."""
    height, width, size = *x.shape[1:3], weight.shape[-1]
    padded, kernel = F.pad(x, (0, 0, *[size // 2] * 4)), weight[:, 0].float()
    kernel = kernel.flip(1, 2) if turned else kernel
    cells = [(i, j) for i in range(size) for j in range(size)]
    return sum(padded[:, i : i + height, j : j + width].float() * kernel[:, i, j] for i, j in cells).to(x.dtype)  # type: ignore[union-attr]


class Shifted(torch.autograd.Function):
    """The convolution and its gradient as shifted products, the kernel's gradient by the library."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return shifted(x, weight) + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        edge = [weight.shape[-1] // 2] * 2
        maps = [m.permute(0, 3, 1, 2) for m in (grad, x)]
        _, of_weight, _ = torch.ops.aten.convolution_backward(
            *maps, weight, None, [1, 1], edge, [1, 1], False, [0, 0], len(weight), [False, True, False]
        )
        return shifted(grad, weight, turned=True), of_weight, grad.float().sum((0, 1, 2)).to(grad.dtype)


class Summed(Shifted):
    """The same with the kernel's gradient as a sum for every cell."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        height, width, size = *x.shape[1:3], weight.shape[-1]
        padded, slope = F.pad(x, (0, 0, *[size // 2] * 4)), grad.float()
        cells = [
            (padded[:, i : i + height, j : j + width].float() * slope).sum((0, 1, 2))
            for i in range(size)
            for j in range(size)
        ]
        of_weight = torch.stack(cells, 1).view_as(weight).to(weight.dtype)
        return shifted(grad, weight, turned=True), of_weight, slope.sum((0, 1, 2)).to(grad.dtype)


FORMS: dict[str, Any] = {"conv": None, "turned": Turned, "shifted": Shifted, "summed": Summed}


class Part(nn.Module):
    """GELU(x + convolution of x), or a 5x5 convolution by itself, on B, H * W, C."""

    def __init__(self, width: int, size: int, form: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, size, padding=size // 2, groups=width)
        self.form, self.alone = FORMS[form], size == 5

    def forward(self, x: Tensor, side: int) -> Tensor:
        x4 = x.unflatten(1, (side, side))
        if self.form is None:
            near = self.conv(x4.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        else:
            near = self.form.apply(x4, *[p.to(x.dtype) for p in (self.conv.weight, self.conv.bias)])
        return near.flatten(1, 2) if self.alone else F.gelu(x + near.flatten(1, 2))


def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attend by products as they are."""
    return (query * query.shape[-1] ** -0.5 @ key.mT + bias).softmax(-1) @ value


def square(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attend with everything padded to 64."""
    count = query.shape[-2]
    more = 64 - count
    query, key, value = (F.pad(x, (0, 0, 0, more)) for x in (query, key, value))
    bias = F.pad(F.pad(bias, (0, more), value=float("-inf")), (0, 0, 0, more))
    return plain(query, key, value, bias)[..., :count, :]


def fused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attend by the library's kernel with keys padded to 64."""
    more = 64 - key.shape[-2]
    key, value = (F.pad(x, (0, 0, 0, more)) for x in (key, value))
    mask = F.pad(bias, (0, more), value=float("-inf"))[None].expand(len(query), -1, -1, -1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


ATTENDS = {"plain": plain, "aligned": workarounds.attend_by_products, "square": square, "fused": fused}


def time_part(name: str, module: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Print what a training step's kernels take, and those that take longest."""
    torch.compiler.reset()
    run = torch.compile(call) if DEVICE == "cuda" else call
    x.requires_grad_()

    def step() -> None:
        x.grad = None
        module.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            out = run(x)
        out.backward(torch.ones_like(out))

    step()
    with open("/tmp/forms.turn", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        total, longest = kernels(step)
    print(f"{name}: {total:.3f} ms", flush=True)
    for spent, count, kernel in longest:
        print(f"    {spent:.3f} ms {count:.0f}x {kernel}", flush=True)


def kernels(step: Callable[[], None], rounds: int = 3) -> tuple[float, list[tuple[float, float, str]]]:
    """Return the milliseconds of a step's kernels and the longest of them."""
    if DEVICE == "cpu":
        return 0.0, []
    for _ in range(2):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            step()
        torch.cuda.synchronize()
    found = [(e.self_device_time_total / rounds / 1e3, e.count / rounds, e.key[:90]) for e in profile.key_averages()]
    return sum(f[0] for f in found), sorted(found, reverse=True)[:6]


def main(form: str) -> None:
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    if form in FORMS:
        for batch, side, width, size in MAPS:
            part = Part(width, size, form).to(DEVICE)
            x = torch.randn(batch, side * side, width, device=DEVICE)
            x = x.bfloat16() if DEVICE == "cuda" else x
            time_part(f"{form} {batch} x {side} x {side} x {width}, {size}", part, partial(part, side=side), x)
        return
    workarounds.attend_by_products = ATTENDS[form]
    for batch, side, width, heads in WINDOWS:
        attention = workarounds.WindowAttentionByProducts(width, num_heads=heads).to(DEVICE)
        x = torch.randn(batch, side * side, width, device=DEVICE)
        name = f"windows, {form} {batch} x {side} x {side} x {width}"
        time_part(name, attention, partial(attention, grid=(side, side)), x)


if __name__ == "__main__":
    main(sys.argv[1])
