"""The `saccade` command: one verb a function."""

import json
import sys
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = ArgumentParser(prog="saccade", description="Better context for vision transformers.")
    verbs = parser.add_subcommands(required=True, dest="verb")
    for name, (describe, _) in VERBS.items():
        verb = ArgumentParser(description=describe.__doc__)
        describe(verb)
        verbs.add_subcommand(name, verb, help=describe.__doc__)
    args = parser.parse_args(argv)
    try:
        VERBS[args.verb][1](args[args.verb])
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"[bold red]saccade {args.verb}:[/] {error}", highlight=False)
        return 2
    return 0


def models_flags(parser: ArgumentParser) -> None:
    """List the backbones: parameters and multiply-adds counted here, beside the papers' figures."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def models(args: Namespace) -> None:
    """Print every backbone with its counted and its published size."""
    from .evaluation.size import model_size
    from .models import list_backbones
    from .models._published import PUBLISHED

    rows: list[dict[str, Any]] = []
    for name in list_backbones():
        size, paper = model_size(name), PUBLISHED[name]
        rows.append(
            {
                "name": name,
                "img_size": size.img_size,
                "params_m": round(size.params / 1e6, 3),
                "paper_params_m": paper.params,
                "gmacs": round(size.macs / 1e9, 3),
                "paper_gmacs": paper.gmacs,
            }
        )
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title="Backbones (differences from the papers: docs/models.md)")
    table.add_column("name", no_wrap=True)
    for column in ("size", "params M", "paper", "GMACs", "paper"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            str(row["img_size"]),
            f"{row['params_m']:.2f}",
            f"{row['paper_params_m']:g}",
            f"{row['gmacs']:.2f}",
            "-" if row["paper_gmacs"] is None else f"{row['paper_gmacs']:g}",
        )
    Console().print(table)


def benchmark_flags(parser: ArgumentParser) -> None:
    """Time a model against a peer in one run."""
    parser.add_argument("--model", required=True, help="a model name, ours or timm's")
    parser.add_argument("--peer", required=True, help="the model to compare with")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument("--precision", default="float32", help="float32, bfloat16 or float16 (autocast)")
    parser.add_argument("--compile", action="store_true", help="time the compiled models as well")


def benchmark(args: Namespace) -> None:
    """Print images per second and peak memory of model and peer, for inference and training."""
    from .evaluation.speed import MODES, Setting, as_markdown, race
    from .models import require_model

    require_model(args.model)
    require_model(args.peer)
    shared: dict[str, Any] = {name: args[name] for name in ("batch_size", "img_size", "device", "precision")}
    settings = [
        Setting(mode=m, compiled=c, **shared) for m in MODES for c in ([False, True] if args.compile else [False])
    ]
    console = Console(stderr=True)
    results = []
    for setting in settings:
        with console.status(f"timing {setting.mode}{' compiled' if setting.compiled else ''}"):
            results.append((setting, race([args.model, args.peer], setting)))
    print(as_markdown(results))


VERBS = {
    "models": (models_flags, models),
    "benchmark": (benchmark_flags, benchmark),
}

if __name__ == "__main__":
    sys.exit(main())
