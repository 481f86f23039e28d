"""`saccade kernels`."""

import json
from argparse import ArgumentParser
from typing import Any

from rich.console import Console
from rich.table import Table

from . import Args

COMPILING_ON_CPU = (  # no kernel; measured in benchmarks/speed/results/kernels/x86_compiled.md
    "engine.compile=true compiles models on a CPU in half a minute to three minutes; on two x86 cores, training steps "
    "of glnet_nano are then 1.06x to 1.09x as fast, those of ViT-Tiny are not faster"
)


def flags(parser: ArgumentParser) -> None:
    """List the kernels that replace plain modules, with their speed-up and whether this machine uses them."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="the GPU, if available")


def run(args: Args) -> None:
    """Print every kernel with its speed-up, or why it is not used."""
    import torch

    from ..kernels.apply import unavailable
    from ..kernels.switch import VARIABLE, chosen
    from ..kernels.table import KERNELS, names

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    on = chosen("auto", names())
    rows: list[dict[str, Any]] = []
    for kernel in KERNELS:
        here = unavailable(kernel, device, kernel.modes[0])
        if here is None and kernel.name not in on and not kernel.workaround:
            here = f"{VARIABLE} disables it"
        row: dict[str, Any] = {
            "name": kernel.name,
            "does": kernel.does,
            "modes": list(kernel.modes),
            "devices": list(kernel.devices),
        }
        row |= {"gain": kernel.gain, "record": kernel.record, "workaround": kernel.workaround}
        rows.append(row | {"used": here is None, "reason": here})
    compiling = COMPILING_ON_CPU if device == "cpu" else None
    if args.json:
        print(json.dumps({"device": device, "kernels": rows, "compiling": compiling}, indent=2))
        return
    if not rows:
        print(f"no kernel applies: everything runs in plain PyTorch on {device}")
        return
    table = Table(title=f"Kernels on {device} (docs/kernels.md)")
    for column in ("name", "what it does, and its gain", "here"):
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        status = f"not used: {row['reason']}" if row["reason"] else "always used" if row["workaround"] else "used"
        gain = row["gain"] or ("works around a compiler bug" if row["workaround"] else "gain not measured")
        table.add_row(row["name"], f"{row['does']}; {gain}", status)
    Console().print(table)
    if compiling:
        Console().print(compiling, markup=False, highlight=False)
