"""Measure how often intervals over folds hold the truth, with learners that learn real images.

    python benchmarks/statistics/folds.py OUT --images cifar10.npz [--experiments 2000] [--device cuda]
    python benchmarks/statistics/folds.py table OUT OUT ...            # one table of what several processes wrote

Many small sets are drawn from a large one. Each is cut into folds, two learners are trained on every cut and asked
about the part left out, and intervals for the difference of their accuracies are made from the answers. The truth is
the mean over all experiments: what the learners differ by when trained on so many images, on average over sets (every
answer is to an image that its learner has not seen, so the mean is right whatever the folds share). Sets of one round
share no image. A design is FOLDSxSEEDSxCUTS: so many folds, trainings of each fold with other seeds, and cuts.

Learners, all on fixed features of the images: ridge regression from weak to strong, the means of the classes, the
nearest neighbour; and, with draws of their own, ridge regression on some of the features and small networks.
Intervals: the plain t that takes every result (a fold, seed and cut) for independent; the plain t over folds, seeds
averaged; Nadeau and Bengio's, for several cuts as Bouckaert and Frank have it; that of `saccade.statistics.folds`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from saccade.data.open import open_data
from saccade.data.source import Source
from saccade.statistics.folds import Folds, folded_spread

PAIRS = {  # learner a, learner b
    "ridge, weak and strong": ("ridge:30", "ridge:0.3"),
    "ridge and class means": ("ridge:3", "means"),
    "nearest neighbour and ridge": ("near", "ridge:3"),
    "ridge on drawn features and on all": ("drawn:16", "ridge:3"),
    "ridge on drawn features, twice": ("drawn:16", "drawn:16"),
    "networks of 16 and 64": ("net:16", "net:64"),
    "network and ridge": ("ridge:3", "net:64"),
}
SEEDED = ("net", "drawn")  # learners that draw
TOGETHER = 50  # experiments
TRIED = (0.0, 0.5, 1.0, 1.5, 2.0)  # shares to choose by
KNOWN = ("every result", "folds", "Nadeau and Bengio", "here")


def main() -> None:
    if sys.argv[1:2] == ["table"]:
        rows = [row for folder in sys.argv[2:] for row in read_rows(Path(folder))]
        print(table(rows))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", required=True, help="a set of 32 x 32 images with labels, as train takes it")
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 700])
    parser.add_argument("--designs", nargs="+", default=["5x1x1", "10x1x1", "5x3x1", "5x1x10"])
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no design after so long")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    features, labels = embed(args.images, args.device)
    rows: list[dict[str, Any]] = []
    for size in args.sizes:
        for design in args.designs:
            for pair in args.pairs:
                folds, seeds, cuts = map(int, design.split("x"))
                if seeds > 1 and not any(one.partition(":")[0] in SEEDED for one in PAIRS[pair]):
                    continue  # every seed would be the same
                left = args.seconds - (time.perf_counter() - begun)
                if left < 0:
                    return
                row = measure(features, labels, PAIRS[pair], size, (folds, seeds, cuts), args.experiments, left)
                if row is None:
                    continue
                rows.append({"pair": pair, **row})
                print(json.dumps(rows[-1]), flush=True)
                (args.out / "folds.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "folds.json").read_text(encoding="utf-8"))
    return rows


def embed(file: str, device: str, *, width: int = 256, kept: int = 48) -> tuple[Tensor, Tensor]:
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
    features: Tensor,
    labels: Tensor,
    pair: tuple[str, str],
    size: int,
    design: tuple[int, int, int],
    experiments: int,
    seconds: float,
) -> dict[str, Any] | None:
    """Run experiments of one design and return how often each interval held the truth; None if time was too short."""
    (folds, seeds, cuts), begun = design, time.perf_counter()
    draws, torch_draws = np.random.default_rng([size, *design]), torch.Generator().manual_seed(size + folds)
    found: list[np.ndarray] = []  # of every experiment: cuts * seeds, samples
    cut_as, accuracy = [], []
    sets: list[np.ndarray] = []  # drawn and not used yet
    while len(found) < experiments and time.perf_counter() - begun < seconds:
        while len(sets) < TOGETHER:
            order = draws.permutation(len(features))
            sets += list(order[: len(order) // size * size].reshape(-1, size))
        mine = torch.from_numpy(np.stack([sets.pop() for _ in range(TOGETHER)])).to(features.device)
        x, y = features[mine], labels[mine]
        fold = np.stack([[draws.permutation(size) % folds for _ in range(cuts)] for _ in range(TOGETHER)])
        right = []
        for name in pair:
            parts = [answers(name, x, y, torch.from_numpy(fold[:, cut]), seeds, torch_draws) for cut in range(cuts)]
            right.append(torch.cat(parts, 1).cpu().numpy())
        found += list(right[1] - right[0])
        cut_as += list(fold)
        accuracy.append([float(one.mean()) for one in right])
    if len(found) < 300:
        return None
    differences = np.stack(found)
    truth = differences.mean()
    held: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    for values, fold in zip(differences, cut_as, strict=True):
        for name, half in intervals(values, fold, folds, seeds).items():
            held.setdefault(name, []).append(abs(values.mean() - truth) <= half)
            widths.setdefault(name, []).append(2 * half)
    spread = differences.mean((1, 2)).std(ddof=1)
    inside = differences.mean(1).var(1, ddof=1).mean() / size
    return {
        "size": size,
        "folds": folds,
        "seeds": seeds,
        "cuts": cuts,
        "accuracy": [round(float(v), 4) for v in np.mean(accuracy, 0)],
        "truth": round(float(truth), 5),
        "standard_error": round(float(spread), 5),
        "multiple": round(float(spread**2 / inside), 3),
        "coverage": {name: round(float(np.mean(v)), 4) for name, v in held.items()},
        "width": {name: round(float(np.mean(v)), 4) for name, v in widths.items()},
        "experiments": len(found),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def intervals(values: np.ndarray, fold: np.ndarray, folds: int, seeds: int) -> dict[str, float]:
    """Return half-widths of 95 % intervals of the mean.

    Args:
        values: cuts * seeds, samples.
        fold: of every sample, cuts, samples.
        folds: of a cut.
        seeds: of a cut.
    """
    cuts = len(fold)
    by_cut = values.reshape(cuts, seeds, -1)
    cells = np.array([[by_cut[c][:, fold[c] == k].mean(1) for k in range(folds)] for c in range(cuts)])
    every, means = cells.reshape(-1), cells.mean(2).reshape(-1)  # cuts, folds, seeds
    t = stats.t.ppf(0.975, len(means) - 1)
    cut = fold[0] if cuts == 1 else None
    found = {
        "every result": stats.t.ppf(0.975, len(every) - 1) * every.std(ddof=1) / np.sqrt(len(every)),
        "folds": t * means.std(ddof=1) / np.sqrt(len(means)),
        "Nadeau and Bengio": t * means.std(ddof=1) * np.sqrt(1 / len(means) + 1 / (folds - 1)),
        "here": float(folded_spread(values, Folds(folds, cut)).half_width(0.95)),
    }
    for one in TRIED:
        found[f"shared {one:g}"] = float(folded_spread(values, Folds(folds, cut, shared=one)).half_width(0.95))
    return found


def answers(name: str, x: Tensor, y: Tensor, fold: Tensor, seeds: int, draws: torch.Generator) -> Tensor:
    """Return whether every sample was answered right out of fold: experiments, seeds, samples.

    Args:
        name: of the learner.
        x: features, experiments, samples, width.
        y: classes, experiments, samples.
        fold: of every sample, the same number in each fold.
        seeds: trainings of every fold.
        draws: of learners that draw.
    """
    kind, _, option = name.partition(":")
    folds = int(fold.max()) + 1
    parts = fold.argsort(dim=1, stable=True).to(x.device).reshape(len(x), folds, -1)
    found = torch.empty(len(x), seeds, x.shape[1], device=x.device)
    for k in range(folds):
        out = parts[:, k]
        rest = parts[:, [other for other in range(folds) if other != k]].flatten(1)
        a, b, asked = (_taken(x, rest), y.gather(1, rest), _taken(x, out))
        for seed in range(seeds if kind in SEEDED else 1):
            told = LEARNERS[kind](a, b, asked, option, draws)
            right = (told == y.gather(1, out)).float()
            for row in [seed] if kind in SEEDED else range(seeds):
                found[:, row].scatter_(1, out, right)
    return found


def _taken(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))


def _ridge(a: Tensor, b: Tensor, asked: Tensor, option: str, draws: torch.Generator) -> Tensor:  # noqa: ARG001
    target = torch.nn.functional.one_hot(b, 10).float()
    centre = target.mean(1, keepdim=True)
    gram = a.mT @ a + float(option) * 10 * torch.eye(a.shape[2], device=a.device)
    return (asked @ torch.linalg.solve(gram, a.mT @ (target - centre)) + centre).argmax(2)


def _drawn(a: Tensor, b: Tensor, asked: Tensor, option: str, draws: torch.Generator) -> Tensor:
    """Ridge regression on features drawn anew for every training."""
    own = torch.rand(len(a), a.shape[2], generator=draws).argsort(1)[:, : int(option)].to(a.device)[:, None]
    parts = (x.gather(2, own.expand(-1, x.shape[1], -1)) for x in (a, asked))
    a, asked = parts
    return _ridge(a, b, asked, "0.3", draws)


def _means(a: Tensor, b: Tensor, asked: Tensor, option: str, draws: torch.Generator) -> Tensor:  # noqa: ARG001
    target = torch.nn.functional.one_hot(b, 10).float()
    return torch.cdist(asked, (target.mT @ a) / target.sum(1)[..., None].clamp_min(1)).argmin(2)


def _near(a: Tensor, b: Tensor, asked: Tensor, option: str, draws: torch.Generator) -> Tensor:  # noqa: ARG001
    return b.gather(1, torch.cdist(asked, a).argmin(2))


def _network(a: Tensor, b: Tensor, asked: Tensor, option: str, draws: torch.Generator) -> Tensor:
    """Networks with one hidden layer, one of each experiment, trained side by side."""
    count, _, dim = a.shape
    hidden = int(option)
    w1 = (torch.randn(count, dim, hidden, generator=draws) / dim**0.5).to(a.device).requires_grad_()
    w2 = (torch.randn(count, hidden, 10, generator=draws) / hidden**0.5).to(a.device).requires_grad_()
    b1 = torch.zeros(count, 1, hidden, device=a.device, requires_grad=True)
    optimizer = torch.optim.AdamW([w1, b1, w2], lr=0.02, weight_decay=0.3, foreach=True)
    for _ in range(40):
        logits = torch.relu(torch.baddbmm(b1, a, w1)) @ w2
        loss = torch.nn.functional.cross_entropy(logits.mT, b, reduction="none", label_smoothing=0.1)
        optimizer.zero_grad()
        loss.mean(1).sum().backward()
        optimizer.step()
    with torch.no_grad():
        return (torch.relu(torch.baddbmm(b1, asked, w1)) @ w2).argmax(2)


LEARNERS: dict[str, Callable[[Tensor, Tensor, Tensor, str, torch.Generator], Tensor]] = {
    "ridge": _ridge,
    "drawn": _drawn,
    "means": _means,
    "near": _near,
    "net": _network,
}


def table(rows: list[dict[str, Any]]) -> str:
    head = ["learners", "images", "folds", "seeds", "cuts", "experiments", "accuracy", "multiple"]
    head += [f"{name}, coverage (width)" for name in KNOWN] + [f"share {one:g}" for one in TRIED]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --: |" * (len(head) - 1)]
    for row in rows:
        accuracy = " / ".join(f"{100 * v:.1f}" for v in row["accuracy"])
        cells = [row["pair"], *(row[name] for name in ("size", "folds", "seeds", "cuts", "experiments"))]
        cells += [accuracy, row["multiple"]]
        cells += [f"{100 * row['coverage'][name]:.1f} ({100 * row['width'][name]:.1f})" for name in KNOWN]
        cells += [f"{100 * row['coverage'][f'shared {one:g}']:.1f}" for one in TRIED]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
