"""Train a ResNet on a set, quantize it to 8 bits by training images, and print what that saves and costs.

    python benchmarks/accuracy/int8.py DATA --out benchmarks/accuracy/results/int8.md  # resnet18, 30 epochs
    python benchmarks/accuracy/int8.py DATA --model resnet34 --img-size 64 --epochs 60 --device cuda

DATA is a folder of class folders, an .npz file or anything else that `saccade train` reads. All validation images are
the judges. Where the run is there already it is not trained again.
"""

import argparse
from pathlib import Path
from typing import Any

import saccade
from saccade.deployment.judge import Exported
from saccade.runs.run import Run
from saccade.support.wording import count_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--img-size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--train-limit", type=int, default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--run", default=None, help="the run's folder; runs/int8-MODEL if not given")
    parser.add_argument("--out", type=Path, default=None, help="a file for the table")
    args = parser.parse_args()
    folder = Path(args.run or f"runs/int8-{args.model}")
    if not (folder / "model.safetensors").exists():
        saccade.train(
            args.data,
            model=args.model,
            epochs=args.epochs,
            img_size=args.img_size,
            batch_size=args.batch_size,
            device=args.device,
            out=folder,
            settings={"data.train_limit": args.train_limit} if args.train_limit else None,
        )
    summary = Run.open(folder).summary()
    exported = saccade.export(folder, int8=True, out=folder / "int8", limit=summary["validation"]["samples"])
    text = "\n".join(table(summary, exported, args))
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(f"{text}\n", encoding="utf-8")


def table(summary: dict[str, Any], exported: Exported, args: argparse.Namespace) -> list[str]:
    """Return what was trained, and a row a file: its size, its score and what it lost, as `export` measured them."""
    lines = [
        f"{args.model} at {args.img_size} pixels, {count_of(summary['epochs'], 'epoch')} on {summary['data']}, judged "
        f"by {exported.samples:,} validation images; 8 bits are calibrated on training images.",
        "",
        f"| file | MiB | {exported.metric.words} | lost, points | 95% interval | ms an image |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for file in exported.files:
        assert file.score is not None
        assert file.loss is not None
        ends = [file.loss.low, file.loss.high]
        interval = "" if None in ends else f"{100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}"
        lines.append(
            f"| {file.path.name} | {file.mib:.1f} | {file.score:.2%} | {100 * file.loss.value:+.2f} | {interval} "
            f"| {1e3 * file.seconds:.2f} |"
        )
    return [*lines, "", *exported.notes]


if __name__ == "__main__":
    main()
