"""The `saccade` command: one verb a function."""

import json
import sys
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.markup import escape
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
        return VERBS[args.verb][1](args[args.verb]) or 0
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if type(error) is RuntimeError:
            raise  # not one of ours: a fault, to be seen whole
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"[bold red]saccade {args.verb}:[/] {escape(str(error))}", highlight=False)
        return 2


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
        size, paper = model_size(name), PUBLISHED.get(name)
        rows.append(
            {
                "name": name,
                "img_size": size.img_size,
                "params_m": round(size.params / 1e6, 3),
                "paper_params_m": paper and paper.params,
                "gmacs": round(size.macs / 1e9, 3),
                "paper_gmacs": paper and paper.gmacs,
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
            "-" if row["paper_params_m"] is None else f"{row['paper_params_m']:g}",
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


def train_flags(parser: ArgumentParser) -> None:
    """Train a model on your pictures, or go on with a run that was stopped."""
    parser.add_argument(
        "data",
        nargs="?",
        default=None,
        help="a folder of class folders, a list, an array file, shards; nothing: a set inside",
    )
    parser.add_argument("--model", default=None, help="a model's name, ours or timm's")
    parser.add_argument("--plugin", action="append", default=None, help="broadcast, drloc:weight=0.3, ...; repeatable")
    parser.add_argument("--recipe", default=None, help="a recipe's name or a YAML file; `small` if not given")
    parser.add_argument("--epochs", type=int, default=None, help="passes over the pictures")
    parser.add_argument("--batch-size", type=int, default=None, help="pictures a step, over all processes")
    parser.add_argument("--lr", type=float, default=None, help="the highest learning rate")
    parser.add_argument("--img-size", type=int, default=None, help="side of the images")
    parser.add_argument("--seed", type=int, default=None, help="of weights, order and augmentation")
    parser.add_argument("--out", default=None, help="the run's folder; a new one under runs/ if not given")
    parser.add_argument("--resume", default=None, help="a run's folder to go on with")
    parser.add_argument("--device", default=None, help="cpu, cuda, cuda:1, ...; a GPU if there is one")
    parser.add_argument("--workers", type=int, default=None, help="processes that read files")
    parser.add_argument(
        "--set", action="append", default=None, metavar="NAME=VALUE", help="any other setting; repeatable"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the run that --out names")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    parser.add_argument("--print-config", action="store_true", help="print the settings and stop")


def train(args: Namespace) -> int:
    """Train, or print the settings that would be trained with."""
    from .config import parse_settings, to_yaml
    from .training.loop import Interrupted
    from .training.train import configure, gather_settings
    from .training.train import train as run_training

    flags = ("data", "model", "epochs", "batch_size", "lr", "img_size", "seed", "device", "workers")
    given: dict[str, Any] = {name: args[name] for name in flags}
    given["plugins"] = [part for text in args.plugin or [] for part in text.split("+")]
    settings = parse_settings(args["set"] or [])
    if args.print_config:
        print(to_yaml(configure(args.recipe, gather_settings(**given) | settings)), end="")
        return 0
    try:
        run_training(
            **given,
            recipe=args.recipe,
            settings=settings,
            out=args.out,
            resume=args.resume,
            overwrite=args.overwrite,
            quiet=args.quiet,
        )
    except Interrupted as stop:
        Console(stderr=True).print(f"stopped by {stop}; go on with: saccade train --resume {escape(str(stop.run))}")
        return 128 + stop.number
    return 0


def data_flags(parser: ArgumentParser) -> None:
    """Look at a set of pictures: `data check DATA` reports what would spoil training."""
    parser.add_argument("what", choices=["check"], help="check: read every picture once and report on the set")
    parser.add_argument(
        "data", nargs="?", default="", help="folder, list, archive or shards; nothing: the embedded set"
    )
    parser.add_argument("--val", default=None, help="the validation pictures, if the set has none of its own")
    parser.add_argument("--min-side", type=int, default=16, help="a shorter side is tiny")
    parser.add_argument("--max-pixels", type=int, default=178_956_970, help="more pixels are huge")
    parser.add_argument("--workers", type=int, default=4, help="threads that read")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")


def data(args: Namespace) -> int:
    """Print the report on a set; the exit status is 1 if something serious was found."""
    from rich.progress import Progress

    from .data.check import check_data

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading pictures", total=None)
        report = check_data(
            args.data,
            val=args.val,
            min_side=args.min_side,
            max_pixels=args.max_pixels,
            workers=args.workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if args.json:
        print(json.dumps(report.to_dict(), indent=2))
        return 0 if report.ok else 1
    console = Console(highlight=False)
    total = " + ".join(f"{count} {split}" for split, count in report.pictures.items())
    console.print(f"{report.name}: {total} pictures, {len(report.classes)} classes", markup=False)
    console.print(f"  the largest class has {report.imbalance:.3g} times the pictures of the smallest")
    for line in (*report.notes, *(f"fewer than ten pictures: {name}" for name in report.small_classes[:10])):
        console.print(f"  {line}", markup=False)
    traits = ", ".join(f"{count} {name}" for name, count in report.traits.items() if count)
    console.print(f"  {traits or 'all pictures are plain 8-bit RGB'}")
    if report.findings:
        table = Table("found", "picture", "what", title=", ".join(f"{n} {kind}" for kind, n in report.counts().items()))
        for finding in report.findings[:50]:
            kind = f"[red]{finding.kind}[/]" if finding.serious else finding.kind
            table.add_row(kind, escape(finding.name), escape(finding.reason))
        console.print(table)
        if len(report.findings) > 50:
            console.print(f"and {len(report.findings) - 50} more: --json prints all")
    console.print("nothing serious was found" if report.ok else "[red]something serious was found[/]")
    return 0 if report.ok else 1


def compare_flags(parser: ArgumentParser) -> None:
    """Train several arms with several seeds, all else held equal, and say which one helps on your pictures."""
    parser.add_argument("data", nargs="?", default=None, help="as for train; nothing: a set inside")
    parser.add_argument(
        "--arm",
        action="append",
        default=None,
        help="base, broadcast, drloc:weight=0.3+lr=0.003, NAME:=model=glnet_stl, ...; repeatable",
    )
    parser.add_argument("--seeds", default="5", help="how many, or which: 3 or 0,1,7")
    parser.add_argument("--model", default=None, help="of all arms that do not name another")
    parser.add_argument("--recipe", default=None, help="a recipe's name or a YAML file; `small` if not given")
    parser.add_argument("--epochs", type=int, default=None, help="passes over the pictures")
    parser.add_argument("--budget", default=None, help="time for all of it, such as 30m: seeds and epochs are fitted")
    parser.add_argument("--out", default=None, help="the comparison's folder; one under runs/ named by what is asked")
    parser.add_argument("--metric", default="top1", help="top1, loss, macro_top1, or a number that runs end with")
    parser.add_argument("--margin", type=float, default=None, help="a difference too small to matter, such as 0.005")
    parser.add_argument("--parallel", type=int, default=None, help="runs side by side; one a GPU if not given")
    parser.add_argument("--device", default=None, help="cpu, cuda, cuda:1, ...; all GPUs if there are any")
    parser.add_argument(
        "--set", action="append", default=None, metavar="NAME=VALUE", help="any other setting of all arms; repeatable"
    )
    parser.add_argument("--seeds-fixed", action="store_true", help="speak about these very trainings only")
    parser.add_argument("--plan", action="store_true", help="print the plan and stop")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of Markdown")
    parser.add_argument("--overwrite", action="store_true", help="take the place of another comparison in --out")
    parser.add_argument("--quiet", action="store_true", help="print the result alone")


def compare(args: Namespace) -> int:
    """Run a comparison and print what it found; the exit status is 1 if an arm failed."""
    from .comparison.compare import compare as run_comparison
    from .comparison.compare import plan_comparison
    from .config import ConfigError, parse_settings
    from .training.loop import Interrupted

    names = ("model", "recipe", "epochs", "budget", "out", "metric", "margin", "parallel", "device")
    given: dict[str, Any] = {name: args[name] for name in (*names, "seeds_fixed", "overwrite", "quiet")}
    try:
        numbers = [int(part) for part in str(args.seeds).split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {args.seeds} was given; give a number, or seeds as 0,1,7") from None
    given["seeds"] = numbers[0] if len(numbers) == 1 and "," not in str(args.seeds) else numbers
    given |= {"arms": args.arm or [], "settings": parse_settings(args["set"] or [])}
    if args.plan:
        print(plan_comparison(args.data, **given))
        return 0
    try:
        result = run_comparison(args.data, **given)
    except Interrupted as stop:
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"stopped by {stop}; the same command goes on with {escape(str(stop.run))}", highlight=False)
        return 128 + stop.number
    print(result.to_json() if args.json else result.to_markdown())
    return int(any(arm.status != "finished" for arm in result.arms))


VERBS = {
    "train": (train_flags, train),
    "compare": (compare_flags, compare),
    "data": (data_flags, data),
    "models": (models_flags, models),
    "benchmark": (benchmark_flags, benchmark),
}

if __name__ == "__main__":
    sys.exit(main())
