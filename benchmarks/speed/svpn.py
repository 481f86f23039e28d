"""Time exact svPN against torch.linalg.svd, forward and backward, and measure its error.

python benchmarks/speed/svpn.py --batch 1536 --size 24 --repeats 20

"""

import argparse
import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor

from saccade.layers.svpn import ApproximateSVPN, power_singular_values
from saccade.layers.svpn_products import SquareRootByProducts


def by_svd(q: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(q, full_matrices=False)
    return (u * s.sqrt()[..., None, :]) @ vh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu, cuda or another; all that are there if not given")
    parser.add_argument("--batch", type=int, default=1536, help="matrices: samples times heads")
    parser.add_argument("--size", type=int, default=24, help="rows and columns of a matrix")
    parser.add_argument("--repeats", type=int, default=20, help="runs of each, the median counts")
    args = parser.parse_args()
    devices = [args.device] if args.device else ["cpu"] + ["cuda"] * torch.cuda.is_available()
    for device in devices:
        compare(torch.device(device), batch=args.batch, size=args.size, repeats=args.repeats)


def compare(device: torch.device, *, batch: int, size: int, repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, size, size, generator=generator).to(device)
    grad = torch.randn(batch, size, size, generator=generator).to(device)
    want, want_grad = run(by_svd, q.double(), grad.double())
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "torch.linalg.svd": by_svd,
        "exact (default)": power_singular_values,
    }
    if device.type != "cpu":  # thousands of small products one after another say nothing there
        forms["exact, products"] = SquareRootByProducts.apply
    forms["approximate"] = ApproximateSVPN(size).to(device)
    print(f"\n{describe(device)}, torch {torch.__version__}: {batch} matrices {size} x {size}, float32, {repeats} runs")
    print(f"{'':18}{'forward':>12}{'ratio':>8}{'+ backward':>12}{'ratio':>8}{'error':>10}{'of grad':>10}")
    base: tuple[float, float] | None = None
    for name, form in forms.items():
        with torch.no_grad():
            forward = clock(lambda form=form: form(q), device, repeats)
        both = clock(lambda form=form: run(form, q, grad), device, repeats)
        base = base or (forward, both)
        out, out_grad = run(form, q, grad)
        errors = "" if name == "approximate" else f"{error(out, want):10.1e}{error(out_grad, want_grad):10.1e}"
        print(f"{name:18}{ratios((forward, both), base)}{errors}")


def ratios(seconds: tuple[float, ...], base: tuple[float, float]) -> str:
    return "".join(f"{own * 1e3:9.3f} ms{peer / own:8.1f}" for own, peer in zip(seconds, base, strict=True))


def run(form: Callable[[Tensor], Tensor], q: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    q = q.detach().requires_grad_()
    out = form(q)
    return out.detach(), torch.autograd.grad(out, q, grad)[0]


def error(got: Tensor, want: Tensor) -> float:
    """Largest difference over the largest magnitude of the same matrix, the worst of the batch."""
    return float(((got - want).abs().amax((1, 2)) / want.abs().amax((1, 2))).max())


def clock(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of a call after two to warm up."""
    seconds = []
    for index in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if index >= 2:
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2]


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"


if __name__ == "__main__":
    main()
