"""Measure what claims need of another claim's trained models: robustness, and the entropy of attention.

    python benchmarks/claims/probe.py --work WORK --data DATA/cifar100.npz --runs cb_vit --out benchmarks/claims/results

Of every finished run in WORK/<claim>/runs that has its weights, each claim whose file names `runs: <claim>` gets one
array in OUT/<its name>/scores.npz: which test images the run still gets right under a change of the images (`score:
centre_occlusion.S`, the share S of the area black, or `fgsm.E`, one step of E/255 along the gradient's sign, as in
`saccade evaluate --robust`), or how evenly each layer attends (`score: entropy`, as a share of its bound, layers by the
first 1,000 test images). Runs that the file has already are left out. In float32, without kernels.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from run import read_claims
from torch import Tensor, nn

from saccade.building.loading import open_model
from saccade.evaluation.classes.attacks import Attack, clean_gradient, fgsm
from saccade.evaluation.robust import occlude_centre
from saccade.explanation.capture import capture

HERE = Path(__file__).resolve().parent
ENTROPIES = 1000  # images
Ask = Callable[[Tensor], Tensor]


class Probed:
    """A trained model and the images it is asked about.

    Args:
        folder: of the run.
        images: uint8 B, H, W, C.
        labels: their classes.
        device: to run on.
        batch_size: images at once.
    """

    def __init__(self, folder: Path, images: np.ndarray, labels: np.ndarray, device: str, batch_size: int) -> None:
        self.loaded = open_model(folder, device=device)
        self.model: nn.Module = self.loaded.model.eval().requires_grad_(False)
        self.images, self.labels, self.device, self.batch_size = images, torch.from_numpy(labels), device, batch_size

    def measure(self, score: str) -> np.ndarray:
        """Return a score: whether each image is right, or layers by images."""
        kind, _, level = score.partition(".")
        if kind == "entropy":
            return self.entropy()
        return np.concatenate([self.right(kind, float(level or 0), start) for start in self.starts(len(self.images))])

    def starts(self, count: int) -> range:
        """Return where batches begin."""
        return range(0, count, self.batch_size)

    def ask(self, images: Tensor) -> Tensor:
        """Return logits of images from 0 to 1."""
        return self.model(self.loaded.normalize(images)).float()

    def pixels(self, start: int, change: Callable[[np.ndarray], np.ndarray] | None = None) -> Tensor:
        """Return a batch of images from 0 to 1."""
        images = self.images[start : start + self.batch_size]
        images = images if change is None else np.stack([change(image) for image in images])
        return torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float() / 255

    def right(self, kind: str, level: float, start: int) -> np.ndarray:
        """Return whether a batch's images are right."""
        labels = self.labels[start : start + self.batch_size].to(self.device)
        if kind == "fgsm":
            clean = self.pixels(start)
            with torch.no_grad():
                valid = nn.functional.one_hot(labels, self.ask(clean[:1]).shape[1]).bool()
            worst, gradient = clean_gradient(self.ask, clean, valid)
            wrong = fgsm(self.ask, clean, valid, Attack(epsilon=level), start=worst, gradient=gradient).wrong
            return (~wrong).cpu().numpy()
        changes = {"clean": None, "centre_occlusion": lambda image: occlude_centre(image, level)}
        with torch.no_grad():
            return (self.ask(self.pixels(start, changes[kind])).argmax(1) == labels).cpu().numpy()

    def entropy(self) -> np.ndarray:
        """Return the mean entropy of attention as a share of its bound, layers by images."""
        found = []
        with torch.no_grad():
            for start in self.starts(min(ENTROPIES, len(self.images))):
                seen = capture(self.model, self.loaded.normalize(self.pixels(start))).attention
                found.append(np.stack([(one.entropy.mean((1, 2, 3)) / one.bound).cpu().numpy() for one in seen]))
        return np.concatenate(found, 1)[:, :ENTROPIES].astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the comparisons, as of run.py")
    parser.add_argument("--data", type=Path, required=True, help="array file of the runs")
    parser.add_argument("--runs", required=True, help="the claim whose runs are measured")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--limit", type=int, help="test images, to try the script")
    args = parser.parse_args()
    scores = {claim.name: claim.text["score"] for claim in read_claims() if claim.text.get("runs") == args.runs}
    with np.load(args.data) as data:
        images, labels = data["x_test"][: args.limit], data["y_test"][: args.limit]
    for summary in sorted(args.work.glob(f"{args.runs}/runs/*/*/summary.json")):
        folder, key = summary.parent, "/".join(summary.parts[-3:-1])
        wanted = [name for name in scores if key not in read(args.out / name / "scores.npz")]
        if not wanted or not (folder / "model.safetensors").exists():
            continue
        begun, probed = time.monotonic(), Probed(folder, images, labels, args.device, args.batch_size)
        for name in wanted:
            found = probed.measure(scores[name])
            add(args.out / name / "scores.npz", key, found if found.ndim == 2 else np.packbits(found))
            print(f"{key} {scores[name]}: {found.mean():.4f} ({time.monotonic() - begun:.1f} s)", flush=True)


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file, none if it is not there."""
    if not path.exists():
        return {}
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def add(path: Path, key: str, found: np.ndarray) -> None:
    """Add an array to a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    with open(part, "wb") as file:
        np.savez_compressed(file, **read(path), **{key: found})
    part.replace(path)


if __name__ == "__main__":
    main()
