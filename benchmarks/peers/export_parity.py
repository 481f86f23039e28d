"""Export every backbone at full depth and every plug-in on a ViT, and print how far the files' logits are off.

    python benchmarks/peers/export_parity.py --out benchmarks/peers/results/export_parity.md  # all, about an hour
    python benchmarks/peers/export_parity.py --out benchmarks/peers/results/export_parity.md --keep  # what is missing
    python benchmarks/peers/export_parity.py sot_7 ExtraBlock  # some, printed

Each model is exported and compared in a process of its own. Weights are the first ones with noise added, so that
nothing is at a neutral start; images are photographs of clothes in grey and coloured clouds, three asked one at a
time and ten by fives.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import saccade
from saccade import plugins
from saccade.data.spec import InputSpec
from saccade.deployment.bundle import Bundle, ExportError
from saccade.deployment.graph import WithPreprocessing, trace, write_onnx, write_program
from saccade.deployment.predictor import OnnxPredictor, ProgramPredictor
from saccade.deployment.verify import TOLERANCE, compare, gather

SIZES = ((64, 64), (97, 131), (160, 96))
SIDES = (64, 96, 160)  # of a ViT, exported anew for each
VIT = "vit_tiny_patch16_224"
MEAN, STD = [0.5, 0.45, 0.4], [0.2, 0.25, 0.3]
PLUGINS: dict[str, Callable[[], Any]] = {
    "ContextBroadcast": plugins.ContextBroadcast,
    "ContextBroadcast(scale)": partial(plugins.ContextBroadcast, scale=True),
    "ExtraBlock": plugins.ExtraBlock,
    "ExtraBlock(mlp)": partial(plugins.ExtraBlock, kind="mlp"),
    "SecondOrderHead": partial(plugins.SecondOrderHead, num_classes=1000),
    "SqueezeExcite": plugins.SqueezeExcite,
    "TokenEmbedding": plugins.TokenEmbedding,
    "UniformHead": plugins.UniformHead,
    "UniformHead(B)": partial(plugins.UniformHead, "B"),
    "UniformHead(C)": partial(plugins.UniformHead, "C"),
}
HEAD = (
    "| model | million parameters | compared at | sizes of one file | ONNX | .pt2 | largest logit | same answer "
    "| seconds | GiB | verdict |\n| --- | --: | --- | --- | --: | --: | --: | --: | --: | --: | --- |"
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="backbones or plug-ins; all if none is given")
    parser.add_argument("--out", type=Path, help="the file to write after each row; standard output if not given")
    parser.add_argument("--keep", action="store_true", help="keep the good rows of --out, ask for the others")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for a model")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    known = [*saccade.list_backbones(), *PLUGINS]
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"{', '.join(unknown)} was given; known are {', '.join(known)}")
    if args.one:
        print(json.dumps(measure(args.names[0])))
        return 0
    rows = kept(args.out) if args.out and args.out.exists() else {}
    for name in args.names or known:
        if args.keep and name in rows and rows[name].endswith("| good |"):
            continue
        rows[name] = row(name, ask(name, args.limit))
        print(rows[name], flush=True)
        if args.out:
            draft = args.out.with_suffix(".part")
            draft.write_text(document([rows[name] for name in known if name in rows]))
            os.replace(draft, args.out)
    return 0 if all(rows[name].endswith("| good |") for name in args.names or known) else 1


def ask(name: str, limit: float) -> dict[str, Any]:
    """Measure one model in a process of its own; what goes wrong there is part of the answer."""
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=limit, check=False
        )
        told = json.loads(done.stdout) if done.returncode == 0 else {"problem": last_line(done)}
    except subprocess.TimeoutExpired:
        told = {"problem": f"not done after {limit:.0f} s"}
    return told | {"seconds": time.perf_counter() - begin}


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"ended with status {done.returncode}").replace("|", "/")[:200]


def measure(name: str) -> dict[str, Any]:
    """Export one model both ways and return what was found."""
    torch.manual_seed(0)
    if name in PLUGINS:
        found = [at_sizes(vit(name, side), side, ((side, side),)) for side in SIDES]
        told = {"fixed": "one each", **{key: max(one[key] for one in found) for key in ("onnx", "pt2", "scale")}}
        told |= {"same": min(one["same"] for one in found), "parameters": found[0]["parameters"]}
    else:
        model = stirred(timm.create_model(name), 96)
        try:
            told = at_sizes(model, 64, SIZES) | {"fixed": "any"}
        except ExportError as error:
            told = at_sizes(model, 64, SIZES[:1]) | {"fixed": f"64 x 64 only: {error}"[:200].replace("|", "/")}
    return told | {"gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def at_sizes(model: nn.Module, side: int, sizes: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Export a model both ways and compare at every size."""
    spec = InputSpec(tuple(map(str, range(1000))), 3, side, MEAN, STD)
    asked = WithPreprocessing(model, spec).eval()
    bundle = Bundle.of(model, spec, name="model", any_size=True, raw=True)
    program = trace(asked)
    found: dict[str, Any] = {"parameters": bundle.parameters, "same": 1.0, "scale": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        for form, write, opener in (
            ("onnx", write_onnx, partial(OnnxPredictor, framed=False)),
            ("pt2", write_program, partial(ProgramPredictor, trust=True)),
        ):
            path = Path(folder) / f"model.{form}"
            write(program, path, bundle)
            parity = compare(asked.outputs, opener(path).outputs, images(spec), sizes, spec)
            found[form] = parity.difference
            found["scale"], found["same"] = max(found["scale"], parity.scale), min(found["same"], parity.same)
            path.unlink()
    return found


def vit(name: str, side: int) -> nn.Module:
    model = timm.create_model(VIT, img_size=side)
    saccade.attach(model, PLUGINS[name]())
    return stirred(model, side)


def stirred(model: nn.Module, side: int) -> nn.Module:
    """Add noise to all weights, since what starts as nothing would be compared as nothing, and settle batch norms.

    Running statistics are those of noise images: with others a deep network's logits grow to hundreds, where float32
    has no 0.0001 to compare.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
        norms = [module.train() for module in model.eval().modules() if isinstance(module, nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = 1.0
        model(torch.randn(8, 3, side, side))
    return model.eval()


def images(spec: InputSpec) -> Tensor:
    """Return photographs of clothes and coloured clouds in turn, uint8 10, 3, S, S."""
    clothes = gather("", spec, data="", limit=5).samples
    small = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    clouds = F.interpolate(small, clothes.shape[-2:], mode="bicubic").mul(255).clamp(0, 255).to(torch.uint8)
    return torch.stack([clothes, clouds], 1).flatten(0, 1)


def row(name: str, told: dict[str, Any]) -> str:
    title = f"{VIT} + {name}" if name in PLUGINS else name
    if "problem" in told:
        return f"| {title} | - | - | - | - | - | - | - | {told['seconds']:.0f} | - | failed: {told['problem']} |"
    sizes = [(side, side) for side in SIDES] if name in PLUGINS else SIZES
    verdict = "good" if told["fixed"] in ("any", "one each") else "one size only"
    if not all(told[form] <= TOLERANCE for form in ("onnx", "pt2")):  # also where one is nan
        verdict = f"over {TOLERANCE:g}"
    return (
        f"| {title} | {told['parameters'] / 1e6:.1f} | {', '.join(f'{h} x {w}' for h, w in sizes)} | {told['fixed']} "
        f"| {told['onnx']:.1e} | {told['pt2']:.1e} | {told['scale']:.1f} | {told['same']:.0%} | {told['seconds']:.0f} "
        f"| {told['gib']:.1f} | {verdict} |"
    )


def kept(path: Path) -> dict[str, str]:
    """Return the rows of a written table by their models."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    named = {line.split("|")[1].strip().removeprefix(f"{VIT} + "): line for line in lines}
    return {name: line for name, line in named.items() if name not in ("model", "---")}


def document(rows: list[str]) -> str:
    import onnxruntime

    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, saccade {saccade.__version__}"
    return (
        "# Exported files against the eager model\n\n`python benchmarks/peers/export_parity.py`; "
        f"{platform.machine()} CPU, "
        f"{torch.get_num_threads()} thread(s); {versions}\n\nLargest absolute difference of a logit over all sizes, "
        f"asked one at a time and by fives; allowed is {TOLERANCE:g}. Seconds and GiB are of the whole process.\n\n"
        f"{HEAD}\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
