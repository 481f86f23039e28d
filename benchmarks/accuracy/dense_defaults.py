"""Train segmenters and detectors by naming nothing, and beside them a sweep over image size and head at equal time.

    python benchmarks/accuracy/dense_defaults.py OUT                                    # coloured shapes, made here
    python benchmarks/accuracy/dense_defaults.py OUT --stage neighbours
    python benchmarks/accuracy/dense_defaults.py OUT --stage sweep --data PATH --task segment --time 5m

Stages, each written to OUT as it ends:

- shapes:     80 training and 40 validation images of 90 x 110 pixels, segmented and detected by default on a CPU;
- neighbours: the same with larger images, with another family of models, with more classes, and with thin shapes;
- sweep:      any dataset by default, then with every size and head of `SIDES` and `HEADS`, for as long as the default
              took unless --time says how long.

A share is the default's result divided by the best of the sweep. The processor and its load are written with the
results, since other programs change how much a CPU gets done.
"""

import argparse
import json
import os
import re
import resource
import time
from datetime import date
from pathlib import Path
from typing import Any

import shapes

import saccade
from saccade.runs.run import Run

METRICS = {"segment": "val_miou", "detect": "val_ap50"}
SHARES = (0.5, 0.75, 1.0, 1.5)  # of the default's size
HEADS = {
    "segment": ("fpn:width=64,inner=64", "upernet:width=64,aux=0", "upernet:width=128,aux=64"),
    "detect": (
        "mask_rcnn:width=64,hidden=256,sampled=64,proposals=200",
        "mask_rcnn:width=128,hidden=512,sampled=256,proposals=500",
        "retinanet:width=64",
        "atss:width=64",
    ),
}
# name: arguments of the generator, and of the training
NEIGHBOURS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "160 x 128 pixels": ({"size": (160, 128)}, {}),
    "seven classes": ({"classes": 7}, {}),
    "thin shapes, 360 x 270 pixels": ({"size": (360, 270), "forms": shapes.THIN}, {}),
    "resnet10t": ({}, {"model": "resnet10t", "time": "3m"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder for what is found")
    parser.add_argument("--stage", choices=list(STAGES), default="shapes")
    parser.add_argument("--task", action="append", choices=list(METRICS), help="both if not given")
    parser.add_argument("--data", help="sweep: the dataset")
    parser.add_argument("--time", help="sweep: of every run, such as 5m")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = {"date": date.today().isoformat(), "machine": machine(), "runs": STAGES[args.stage](args)}
    (args.out / f"{args.stage}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def by_default(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The shapes, by naming nothing."""
    return [run(made(args.out, task), task, args) for task in tasks(args)]


def neighbours(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Other shapes and models."""
    return [
        {"neighbour": name, **run(made(args.out, task, **of_set), task, args, **more)}
        for task in tasks(args)
        for name, (of_set, more) in NEIGHBOURS.items()
    ]


def sweep(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A dataset by default, and with other sizes and heads for the same time."""
    (task,) = tasks(args)
    data = args.data or made(args.out, task)
    rows = [run(data, task, args, **({"time": args.time} if args.time else {}))]
    seconds = args.time or f"{max(round(rows[0]['seconds']), 30)}s"
    sides = {max(round(rows[0]["size"] * share / 32) * 32, 32) for share in SHARES}
    for side in sorted(sides):
        for head in HEADS[task]:
            rows.append(run(data, task, args, time=seconds, img_size=side, settings={"model.head": head}))
    best = max(row[METRICS[task]] for row in rows[1:])
    rows[0]["share of the best"] = round(rows[0][METRICS[task]] / best, 3) if best else None  # nothing has learnt
    return rows


def run(data: str | Path, task: str, args: argparse.Namespace, **given: Any) -> dict[str, Any]:
    """Train once; return settings, result and time, that of the processor beside the clock's."""
    place = args.out / "runs" / f"{task}-{time.time_ns()}"
    begun, used = time.monotonic(), processor_seconds()
    done = saccade.train(str(data), task=task, out=place, device=args.device, **given)
    seconds, used = time.monotonic() - begun, processor_seconds() - used
    config = Run(done.path).config()
    row = {"task": task, "data": Path(data).name, "model": config.model.name, "options": config.model.options}
    row |= {"size": config.data.img_size, "head": config.model.head, "epochs": config.schedule.epochs}
    row |= {"batch": config.optim.batch_size, METRICS[task]: round(float(done.metrics[METRICS[task]]), 4)}
    return row | {"seconds": round(seconds, 1), "processor_seconds": round(used, 1), "load": os.getloadavg()[0]}


def made(out: Path, task: str, **options: Any) -> Path:
    """Return a folder of shapes, which is made where it is missing."""
    words = "-".join(f"{name}-{value}" for name, value in options.items())
    words = re.sub(r"\W+", "-", words).strip("-")
    root = out / "data" / f"{task}-{words or 'shapes'}"
    if not root.is_dir():
        {"segment": shapes.make_masks, "detect": shapes.make_boxes}[task](root, **options)
    return root


def tasks(args: argparse.Namespace) -> list[str]:
    return args.task or list(METRICS)


def processor_seconds() -> float:
    """Return the seconds that all cores spent on this process and on those it ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def machine() -> dict[str, Any]:
    """Return the processor's name and what else it is doing."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"processor": names[0] if names else "unknown", "cores": os.cpu_count(), "load_before": os.getloadavg()}


STAGES = {"shapes": by_default, "neighbours": neighbours, "sweep": sweep}

if __name__ == "__main__":
    main()
