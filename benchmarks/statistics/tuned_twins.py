"""How often `compare --tune` raises a false alarm in a real case: arms that differ by their drawn weights alone.

    python benchmarks/statistics/tuned_twins.py run OUT --data cifar100.npz --comparisons 60 --first 0 --seconds 400
    python benchmarks/statistics/tuned_twins.py table OUT          # of all lines there, also of processes side by side

Every comparison draws ten classes of a set and images of its own, tunes the two arms and then trains both with fresh
seeds. The second arm has a plug-in that turns the signs of its initial weights by chance: drawn from the same
distribution, otherwise drawn, so that the arms are the same in truth and never in numbers. A false alarm is a verdict
"helps" or "hurts". Promised are at most 5 of 100, and 1 that the arms are given different settings.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from saccade import compare
from saccade.data.open import open_data
from saccade.plugins import Host
from saccade.plugins.registry import register_plugin

CLASSES, TRAIN, VAL = 10, 100, 60  # images of a class
TINY = {"embed_dim": 48, "depth": 2, "num_heads": 3, "patch_size": 8}


@register_plugin("twin")
class Twin:
    """Draw the host's symmetric initial weights anew by their signs."""

    def install(self, host: Host, handle: Any) -> None:  # noqa: ARG002
        """Turn signs, by draws that follow from the weights and so from the run's seed."""
        matrices = [weight for weight in host.model.parameters() if weight.ndim > 1]
        seed = int(matrices[0].detach().double().abs().sum().item() * 1e6) % 2**31
        draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in matrices:
                signs = torch.randint(0, 2, weight.shape, generator=draws) * 2 - 1
                weight.mul_(signs.to(weight.device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", help="an archive of small images with many classes")
    parser.add_argument("--comparisons", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first, where several processes share them")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after so long")
    parser.add_argument("--tune", default="15s", help="of each arm")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    if args.do == "table":
        print(table(args.out))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    begun, took = time.monotonic(), 0.0
    whole = open_data(args.data, folds=2).whole
    assert whole is not None
    images, labels = whole.array(), whole.labels
    for number in range(args.first, args.first + args.comparisons):
        since = time.monotonic()
        if since - begun + took > args.seconds:
            break
        record = twins(args, number, images, labels)
        took = max(took, time.monotonic() - since)
        with open(args.out / f"twins-{args.first}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)


def twins(args: argparse.Namespace, number: int, images: Any, labels: np.ndarray) -> dict[str, Any]:
    """Run one comparison of an arm with its twin."""
    draws = np.random.default_rng([2026, number])
    parts: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    for kind in draws.choice(np.unique(labels), CLASSES, replace=False):
        mine = draws.permutation(np.flatnonzero(labels == kind))
        parts["train"].append(mine[:TRAIN])
        parts["val"].append(mine[TRAIN : TRAIN + VAL])
    arrays = {}
    for role, places in parts.items():
        own = np.concatenate(places)
        arrays[f"x_{role}"] = images[own]
        arrays[f"y_{role}"] = np.repeat(np.arange(CLASSES), [len(one) for one in places])
    folder = args.out / f"comparison-{args.first}"
    shutil.rmtree(folder, ignore_errors=True)
    file = args.out / f"set-{args.first}.npz"
    np.savez(file, **arrays)
    begun = time.monotonic()
    seeds = [1000 * number + one for one in range(args.seeds)]
    result = compare(
        str(file),
        arms=["base", "twin"],
        seeds=seeds,
        model="vit_tiny_patch16_224",
        epochs=args.epochs,
        tune=args.tune,
        out=folder,
        device="cpu",
        quiet=True,
        settings={"model.options": TINY, "engine.threads": 1, "keep.evaluate_every": args.epochs},
    )
    told = result.to_dict()
    shutil.rmtree(folder, ignore_errors=True)
    file.unlink()
    twin = next(arm for arm in told["arms"] if arm["name"] == "twin")
    difference, tuned = result.differences["twin"].difference, result.tuned
    assert tuned is not None
    return {
        "number": number,
        "verdict": told["verdicts"]["twin"]["kind"],
        "accuracy": [round(next(a["mean"] for a in told["arms"] if a["name"] == "base"), 4), round(twin["mean"], 4)],
        "difference": round(difference.mean, 5),
        "low": round(difference.low, 5),
        "high": round(difference.high, 5),
        "p": difference.p_value,
        "different_settings": bool(tuned.own),
        "own_best_differ": _own_best(tuned, "base") != _own_best(tuned, "twin"),
        "trials": len(tuned.attempts),
        "seconds": round(time.monotonic() - begun, 1),
    }


def _own_best(tuned: Any, arm: str) -> Any:
    ended = [one for one in tuned.attempts if one.arm == arm and one.trial.score is not None]
    last = max(one.rung for one in ended)
    return max((one for one in ended if one.rung == last), key=lambda one: one.trial.score).values


def table(folder: Path) -> str:
    """Return counts of all comparisons there, with exact intervals."""
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    records = list({record["number"]: record for record in map(json.loads, lines)}.values())
    rows = {
        "verdicts helps or hurts": [record["verdict"] in ("helps", "hurts") for record in records],
        "p below 0.05": [record["p"] < 0.05 for record in records],
        "the arms got different settings": [record["different_settings"] for record in records],
        "what scored best differed between the arms": [record["own_best_differ"] for record in records],
    }
    mean = np.mean([record["accuracy"] for record in records])
    found = [f"{len(records)} comparisons, accuracy {mean:.1%} on average", "", "| | of all | share | 95 % interval |"]
    found.append("| --- | --: | --: | --: |")
    for name, marks in rows.items():
        exact = stats.binomtest(sum(marks), len(marks)).proportion_ci(method="exact")
        share = f"{np.mean(marks):.1%}"
        found.append(f"| {name} | {sum(marks)} of {len(marks)} | {share} | {exact.low:.1%} to {exact.high:.1%} |")
    return "\n".join(found)


if __name__ == "__main__":
    main()
