"""Measure how often intervals over folds hold the truth, with learners that learn real images.

    python benchmarks/folds.py OUT --images cifar10.npz [--experiments 2000] [--device cuda]

Many small sets are drawn from a large one. Each is cut into folds, two learners are trained on every cut and asked
about the part left out, and intervals for the difference of their accuracies are made from the answers. The truth is
the mean over all experiments: what the learners differ by when trained on so many images, on average over sets.
Sets of one round share no image. Learners: ridge regression on fixed features of the images, from weak to strong, and
small networks with seeds of their own. Intervals: the plain t over all results, over fold means, Nadeau and Bengio's,
and that of `saccade.comparison.folded`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from saccade.comparison.folded import Folds, folded_spread
from saccade.data.open import open_data
from saccade.data.source import Source

PAIRS = {  # learner a, learner b
    "ridge, weak against strong": ("ridge:30", "ridge:0.3"),
    "ridge against class means": ("ridge:3", "means"),
    "networks of 16 and 64": ("net:16", "net:64"),
    "network against ridge": ("ridge:3", "net:64"),
}
TRIED = (0.0, 0.5, 1.0, 1.5, 2.0)  # shares to choose by


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", required=True, help="a set of 32 x 32 images with labels, as train takes it")
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 700])
    parser.add_argument("--folds", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    features, labels = embed(args.images, args.device)
    rows = []
    for pair in args.pairs:
        for size in args.sizes:
            for folds in args.folds:
                for seeds in args.seeds:
                    begun = time.perf_counter()
                    row = measure(features, labels, PAIRS[pair], size, folds, seeds, args.experiments)
                    row |= {"pair": pair, "seconds": round(time.perf_counter() - begun, 1)}
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    (args.out / "folds.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    (args.out / "folds.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


def embed(file: str, device: str, *, width: int = 256, kept: int = 96) -> tuple[Tensor, Tensor]:
    """Return features of images: patches compared with random ones, pooled, their principal components."""
    data = open_data(file)
    both = [part for part in (data.train, data.val) if isinstance(part, Source)]  # one pool
    images = torch.from_numpy(np.concatenate([part.array() for part in both]))  # type: ignore[misc]
    labels = torch.from_numpy(np.concatenate([part.labels for part in both])).to(device)
    draws = torch.Generator().manual_seed(0)
    found = []
    patches = None
    for chunk in images.split(500):
        x = chunk.to(device).permute(0, 3, 1, 2).float() / 255 - 0.45
        if patches is None:
            cut = torch.nn.functional.unfold(x, 6, stride=5).transpose(1, 2).reshape(-1, 108)
            patches = cut[torch.randperm(len(cut), generator=draws)[:width].to(device)]
            patches = patches - patches.mean(1, keepdim=True)
            patches = (patches / patches.norm(dim=1, keepdim=True)).reshape(width, 3, 6, 6)
        maps = torch.nn.functional.conv2d(x, patches, stride=2)
        maps = torch.cat([maps.clamp_min(0), (-maps).clamp_min(0)], 1)
        found.append(torch.nn.functional.adaptive_avg_pool2d(maps, 2).flatten(1))
    x = torch.cat(found)
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    _, _, v = torch.pca_lowrank(x, kept, niter=4)
    x = x @ v
    return (x / x.std(0)).float(), labels


def measure(
    features: Tensor, labels: Tensor, pair: tuple[str, str], size: int, folds: int, seeds: int, experiments: int
) -> dict[str, Any]:
    """Run experiments of one design and return how often each interval held the truth."""
    device, draws = features.device, np.random.default_rng([size, folds, seeds])
    differences = np.empty((experiments, seeds, size))
    fold = np.arange(size) % folds
    done, accuracy = 0, []
    while done < experiments:
        order = draws.permutation(len(features))
        for start in range(0, len(order) - size + 1, size):
            if done == experiments:
                break
            mine = torch.from_numpy(order[start : start + size]).to(device)
            right = [answers(name, features[mine], labels[mine], fold, seeds, seed=done) for name in pair]
            differences[done] = (right[1] - right[0]).cpu().numpy()
            accuracy.append([float(one.mean()) for one in right])
            done += 1
    truth = differences.mean()
    held: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    for values in differences:
        for name, half in intervals(values, fold, folds).items():
            held.setdefault(name, []).append(abs(values.mean() - truth) <= half)
            widths.setdefault(name, []).append(2 * half)
    spread = differences.mean((1, 2)).std(ddof=1)
    inside = differences.mean(1).var(1, ddof=1).mean() / size
    return {
        "size": size,
        "folds": folds,
        "seeds": seeds,
        "accuracy": [round(float(v), 4) for v in np.mean(accuracy, 0)],
        "truth": round(float(truth), 5),
        "standard_error": round(float(spread), 5),
        "multiple": round(float(spread**2 / inside), 3),
        "coverage": {name: round(float(np.mean(v)), 4) for name, v in held.items()},
        "width": {name: round(float(np.mean(v)), 4) for name, v in widths.items()},
        "experiments": experiments,
    }


def intervals(values: np.ndarray, fold: np.ndarray, folds: int) -> dict[str, float]:
    """Return half-widths of 95 % intervals of the mean."""
    cells = np.array([[row[fold == k].mean() for k in range(folds)] for row in values])  # seeds, folds
    means = cells.mean(0)
    t = stats.t.ppf(0.975, folds - 1)
    every = cells.reshape(-1)
    return {
        "plain t over all results": stats.t.ppf(0.975, len(every) - 1) * every.std(ddof=1) / np.sqrt(len(every)),
        "plain t over folds": t * means.std(ddof=1) / np.sqrt(folds),
        "Nadeau and Bengio": t * means.std(ddof=1) * np.sqrt(1 / folds + 1 / (folds - 1)),
        "here": float(folded_spread(values, Folds(folds, fold)).half_width(0.95)),
        **{
            f"shared {one:g}": float(folded_spread(values, Folds(folds, fold, shared=one)).half_width(0.95))
            for one in TRIED
        },
    }


def answers(name: str, x: Tensor, y: Tensor, fold: np.ndarray, seeds: int, *, seed: int) -> Tensor:
    """Return whether every sample was answered right out of fold, seeds x samples."""
    found = torch.empty(seeds, len(x), device=x.device)
    kind, _, option = name.partition(":")
    one_hot = torch.nn.functional.one_hot(y, 10).float()
    if kind == "net":
        return _networks(x, y, fold, seeds, int(option), seed)
    for k in np.unique(fold):
        out = torch.from_numpy(fold == k).to(x.device)
        a, b = x[~out], one_hot[~out]
        if kind == "ridge":
            centre = b.mean(0)
            gram = a.T @ a + float(option) * 10 * torch.eye(a.shape[1], device=x.device)
            scores = x[out] @ torch.linalg.solve(gram, a.T @ (b - centre)) + centre
        else:
            means = (b.T @ a) / b.sum(0)[:, None].clamp_min(1)
            scores = -torch.cdist(x[out], means)
        found[:, out] = (scores.argmax(1) == y[out]).float()
    return found


def _networks(x: Tensor, y: Tensor, fold: np.ndarray, seeds: int, hidden: int, seed: int) -> Tensor:
    """Train a network for every fold and seed, all at once."""
    folds = int(fold.max()) + 1
    count, (size, dim), device = folds * seeds, x.shape, x.device
    draws = torch.Generator().manual_seed(seed)
    w1 = (torch.randn(count, dim, hidden, generator=draws) / dim**0.5).to(device).requires_grad_()
    w2 = (torch.randn(count, hidden, 10, generator=draws) / hidden**0.5).to(device).requires_grad_()
    b1 = torch.zeros(count, 1, hidden, device=device, requires_grad=True)
    weight = torch.from_numpy(np.stack([(fold != k % folds) for k in range(count)])).to(device).float()
    optimizer = torch.optim.AdamW([w1, b1, w2], lr=0.02, weight_decay=0.3, foreach=True)
    target = y.expand(count, size)
    every = x.expand(count, size, dim)
    for _ in range(40):
        logits = torch.relu(torch.baddbmm(b1, every, w1)) @ w2
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), target, reduction="none", label_smoothing=0.1)
        optimizer.zero_grad()
        ((loss * weight).sum() / weight[0].sum()).backward()
        optimizer.step()
    with torch.no_grad():
        right = ((torch.relu(torch.baddbmm(b1, every, w1)) @ w2).argmax(2) == target).float() * (1 - weight)
    return right.reshape(seeds, folds, size).sum(1)


def table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0]["coverage"] if not name.startswith("shared")]
    head = ["learners", "images", "folds", "seeds", "accuracy", "multiple", *names]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        accuracy = " / ".join(f"{100 * v:.1f}" for v in row["accuracy"])
        cells = [row["pair"], row["size"], row["folds"], row["seeds"], accuracy, row["multiple"]]
        cells += [f"{100 * row['coverage'][name]:.1f} ({100 * row['width'][name]:.1f})" for name in names]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
