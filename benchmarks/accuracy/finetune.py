"""Fine-tune, probe and train from scratch on few photographs, over folds; find labels that were swapped.

    python benchmarks/accuracy/finetune.py OUT --data pets.csv --weights lite0.safetensors --device cuda --parallel 12
    python benchmarks/accuracy/finetune.py OUT --images cifar10.npz --stage labels --device cuda --parallel 5

The list has the columns path, label and split; folds are cut from the training part, and settings are chosen by the
part `val`. Stages, each written to OUT as it ends:

- tune:    one training of several settings from the real weights, validated on the part `val`;
- folds:   fine-tuned, probed and from scratch, five folds by three seeds;
- plugins: plug-ins on the real weights, five folds by three seeds;
- average: the weights of the seeds trained on all of the training part, averaged, beside each of them;
- labels:  5 % of the labels of a set swapped, and found again from out-of-fold answers.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from one_process import share_processes

from saccade import compare, cross_validate
from saccade.settings import parse_settings

TRIED = {
    "as it is": "",
    "slower": "lr=1e-4,optim.new_scale=30",
    "faster": "lr=1e-3,optim.new_scale=3",
    "flat": "optim.layer_decay=0.9",
    "steep": "optim.layer_decay=0.65",
    "head longer": "schedule.head_epochs=10",
    "large": "img_size=256",
    "gentle crops": "augment.scale=[0.6,1.0]",
    "mixed": "augment.mixup=0.2,augment.cutmix=1.0,augment.mix_prob=0.5",
    "head no faster": "optim.new_scale=1",
    "probe": "model.probe=true",
    "probe faster": "model.probe=true,optim.new_scale=30",
}
PROBE = "model.probe=true"
SCRATCH = (
    "recipe=small,model.checkpoint=null,schedule.epochs=100,optim.batch_size=32,augment.crop=resized,optim.lr=1e-3,"
    "data.img_size=160"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", help="the list of photographs")
    parser.add_argument("--weights", help="of the model")
    parser.add_argument("--model", default="tf_efficientnet_lite0")
    parser.add_argument("--images", help="a set of small images for the stage labels")
    parser.add_argument("--stage", action="append", choices=list(STAGES), help="tune, folds and plugins if not given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parallel", type=int, default=None, help="runs side by side")
    parser.add_argument("--staying", type=int, default=None, help="processes that stay, instead of one a run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument(
        "--epochs", type=int, default=None, help="of the stage labels; of every stage's runs for a trial"
    )
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, a setting of every run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.staying:
        share_processes(args.staying)
    for stage in args.stage or ["tune", "folds", "plugins"]:
        begun = time.perf_counter()
        found = STAGES[stage](args)
        found["seconds"] = round(time.perf_counter() - begun, 1)
        (args.out / f"{stage}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(stage, json.dumps(found, indent=1), flush=True)


def tune(args: argparse.Namespace) -> dict[str, Any]:
    """Choose the settings of the recipe by one training each."""
    arms = [f"{name}:={text or 'base'}" for name, text in TRIED.items()]
    _compared(args, "tune", arms, seeds=1, seeds_fixed=True)
    found = {}
    told = json.loads((args.out / "tune" / "result.json").read_text(encoding="utf-8"))
    for arm in told["arms"]:
        found[arm["name"]] = arm["mean"]
    whole = {name: value for name, value in found.items() if not name.startswith("probe") and value is not None}
    probes = {name: value for name, value in found.items() if name.startswith("probe") and value is not None}
    return {
        "accuracy": found,
        "chosen": max(whole, key=lambda n: whole[n]),
        "probe": max(probes, key=lambda n: probes[n]),
    }


def folds(args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tuned, probed and from scratch."""
    chosen, probe = _chosen(args)
    arms = [f"fine-tuned:={chosen or 'base'}", f"probed:={probe}", f"from scratch:={SCRATCH}"]
    return _compared(args, "folds", arms, seeds=args.seeds, folds=args.folds)


def plugins(args: argparse.Namespace) -> dict[str, Any]:
    """Plug-ins on the trained weights."""
    chosen, _ = _chosen(args)
    more = f"+{chosen}" if chosen else ""
    for run in (args.out / "folds" / "runs").glob("fine-tuned-*"):  # the same trainings
        shutil.copytree(run, args.out / "plugins" / "runs" / run.name, dirs_exist_ok=True)
    (args.out / "plugins").mkdir(parents=True, exist_ok=True)
    (args.out / "plugins" / "comparison.json").write_text(json.dumps({"request": {}}), encoding="utf-8")
    arms = [f"base:={chosen or 'base'}", f"second order beside:=second_order:beside=true{more}", f"drloc:=drloc{more}"]
    return _compared(args, "plugins", arms, seeds=args.seeds, folds=args.folds)


def _chosen(args: argparse.Namespace) -> tuple[str, str]:
    file = args.out / "tune.json"
    if not file.exists():
        return "", PROBE
    told = json.loads(file.read_text(encoding="utf-8"))
    return TRIED[told["chosen"]], TRIED[told["probe"]]


def _compared(args: argparse.Namespace, name: str, arms: list[str], **options: Any) -> dict[str, Any]:
    result = compare(
        args.data,
        arms=arms,
        model=args.model,
        checkpoint=args.weights,
        out=args.out / name,
        device=args.device,
        parallel=args.parallel,
        epochs=args.epochs,
        overwrite=True,
        settings=_settings(args),
        **options,
    )
    runs = {}
    for file in sorted((args.out / name / "runs").rglob("summary.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        kept = {key: round(value, 5) for key, value in told.items() if isinstance(value, float)}
        runs[file.parent.relative_to(args.out / name / "runs").as_posix()] = kept
    return {"runs": runs, "words": result.to_markdown()}


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what spares time and disk in many short runs."""
    shared = {
        "keep.evaluate_every": 10,
        "keep.every_seconds": 1e9,
        "keep.states": 1,
        "engine.compile": False,
        "data.workers": 3,
    }
    return shared | parse_settings(args.set)


def average(args: argparse.Namespace) -> dict[str, Any]:
    """Average the weights of seeds that began from the same ones."""
    from saccade import average_weights, evaluate, train

    chosen, _ = _chosen(args)
    changed = parse_settings(chosen.split(",")) if chosen else {}
    short = {"lr": "optim.lr", "epochs": "schedule.epochs", "img_size": "data.img_size"}
    settings = _settings(args) | {short.get(name, name): value for name, value in changed.items()}
    runs = []
    for seed in range(args.seeds):
        out = args.out / "average" / f"seed-{seed}"
        given: dict[str, Any] = {"model": args.model, "checkpoint": args.weights, "device": args.device, "seed": seed}
        given |= {"epochs": args.epochs, "out": out, "overwrite": True, "quiet": True}
        runs.append(train(args.data, settings=settings, **given).path)
    joined = average_weights(runs, args.out / "average" / "averaged.safetensors")
    out = args.out / "average" / "evaluation"
    told = evaluate([*runs, joined], data=args.data, device=args.device, out=out, quiet=True)
    return {"words": told.to_markdown()}


def labels(args: argparse.Namespace) -> dict[str, Any]:
    """Swap 5 % of the labels, train over folds, and look for them."""
    from saccade.data.open import open_data
    from saccade.evaluation.suspects import find_suspects

    train = open_data(args.images, folds=2).whole
    assert train is not None
    images, right = train.array(), train.labels
    draws = np.random.default_rng(5)
    swapped = draws.random(len(right)) < 0.05
    wrong = right.copy()
    wrong[swapped] = (right[swapped] + draws.integers(1, len(train.outputs), swapped.sum())) % len(train.outputs)
    file = args.out / "swapped.npz"
    np.savez(file, x_train=images, y_train=wrong.astype(np.uint8), classes=np.array(train.outputs))
    out = args.out / "labels"
    settings = _settings(args) | {"model.name": args.model, "model.checkpoint": args.weights, "data.img_size": 128}
    settings |= {"schedule.epochs": args.epochs or 6, "schedule.head_epochs": 1, "keep.evaluate_every": 6}
    settings |= {"optim.batch_size": 128, "augment.scale": [0.5, 1.0], "keep.ema": 0.995}
    told = cross_validate(
        "finetune",
        data=str(file),
        folds=args.folds,
        seeds=min(args.seeds, 2),
        out=out,
        device=args.device,
        parallel=args.parallel,
        settings=settings | parse_settings(args.set),
    )
    found = find_suspects(out)
    marked = np.zeros(len(right), bool)
    marked[[one.place for one in found.suspects]] = True
    hits = int((marked & swapped).sum())
    given = np.array([one.likely for one in found.suspects])
    truth = np.array([train.outputs[right[one.place]] for one in found.suspects])
    return {
        "swapped": int(swapped.sum()),
        "marked": int(marked.sum()),
        "precision": hits / max(int(marked.sum()), 1),
        "recall": hits / max(int(swapped.sum()), 1),
        "right_class_named": float((given == truth)[swapped[[one.place for one in found.suspects]]].mean()),
        "out_of_fold_accuracy": told.score,
    }


STAGES = {"tune": tune, "folds": folds, "plugins": plugins, "average": average, "labels": labels}

if __name__ == "__main__":
    main()
