"""Find probably wrong labels from out-of-fold predictions.

Confident learning (Northcutt, Jiang and Chuang, 2021) counts samples that are assigned to another class with more than
usual confidence. This is a likelihood-based variant: a temperature calibrates out-of-fold predictions, and a share of
the labels (noise) is assumed to be replaced by other classes. Both are fitted to the given labels, which yields a
probability that each label is wrong.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import optimize, special

from ..data.open import Data
from ..data.source import Source
from ..runs.run import Run, RunError
from ..runs.scores import read_tensors
from ..settings import overlay
from ..tasks.opening import open_samples

OUT_OF_FOLD = "out_of_fold"
CUT = 0.5  # least probability of a listed label to be wrong
SOUND = 0.7  # least agreement of labels and predictions; below it, expected precision is too high (docs/finetuning.md)


@dataclass(frozen=True)
class Suspect:
    """A label that is probably wrong."""

    place: int  # index of the sample
    name: str  # name of the sample
    given: str  # given label
    likely: str  # most probable class
    wrong: float  # probability that the label is wrong
    of_given: float  # probability of the given label, by the models
    of_likely: float  # probability of the likely class


@dataclass(frozen=True)
class Suspects:
    """Result of the search for wrong labels."""

    suspects: tuple[Suspect, ...]  # listed labels, most probable errors first
    source: Source  # the samples
    data: Data  # their dataset
    samples: int  # number of samples
    noise: float  # estimated share of wrong labels in the dataset
    temperature: float  # fitted temperature
    precision: float  # expected share of listed labels that are wrong
    recall: float  # expected share of wrong labels that are listed
    agreement: float  # accuracy of the predictions on the given labels
    trainings: int  # predictions averaged for each sample
    answers: str = "RUN"  # the folder of the predictions

    @property
    def sentence(self) -> str:
        """The result in a sentence."""
        count = len(self.suspects)
        share = f"about {self.noise:.1%} of the {self.samples:,} labels are wrong according to the models"
        poor = (
            f". Do not rely on this: the predictions agree with only {self.agreement:.0%} of the labels, which says "
            "more about the models than about the labels; train a better model first, such as from --pretrained "
            "weights"
        ) * (self.agreement < SOUND)
        if not count:
            return f"no label is more probably wrong than right; {share}{poor}"
        return (
            f"{count:,} labels are more probably wrong than right ({share}); about {self.precision:.0%} of these are "
            f"expected to be wrong, which would be about {self.recall:.0%} of all wrong labels{poor}"
        )


def find_suspects(path: str | Path, *, arm: str | None = None, data: str = "") -> Suspects:
    """Find the labels of a dataset that are probably wrong.

    Args:
        path: folder with out-of-fold predictions, of `compare --folds` or `evaluate --folds`; or a run, to use its
            validation samples.
        arm: arm of the predictions, as its files in `out_of_fold` are named; default: the most accurate one.
        data: location of the dataset, if it has moved.
    """
    folder = Path(path).expanduser()
    if (folder / OUT_OF_FOLD).is_dir():
        kept = _arm_files(folder / OUT_OF_FOLD, arm)
        settings = next(iter(sorted((folder / "runs").glob("*/seed-*/config.yaml"))), None)
        if settings is None:
            raise RunError(f"{folder} has predictions but no runs; give the complete directory of the comparison")
        config = Run.open(settings.parent).config()
    else:
        if (folder / "comparison.json").exists():
            raise RunError(
                f"{folder} is a comparison without folds, which has no predictions for all samples; give one of its "
                f"runs, such as {folder}/runs/ARM/seed-0, or compare with --folds 5"
            )
        run = Run.open(folder)
        config, kept = run.config(), [run.predictions_file]
    parts = [read_tensors(file) for file in kept]
    if not all({"place", "label", "logits"} <= part.keys() for part in parts):
        raise RunError(f"{folder} has no logits of classes; labels can only be checked if each sample has one class")
    config = overlay(config, {"data.path": data} if data else {})
    _, opened = open_samples(config.task, config.data)
    source = opened.whole if opened.whole is not None and (folder / OUT_OF_FOLD).is_dir() else opened.val
    places, labels, logits = _joined(parts)
    if len(places) and (places[-1] >= len(source) or not np.array_equal(source.labels[places], labels)):
        raise RunError(f"the labels of {config.data.path} have changed since {folder} was trained; train it again")
    shares, temperature, noise = fit(logits, labels)
    wrong = posterior(shares, labels, noise)
    listed = np.flatnonzero(wrong >= CUT)
    listed = listed[np.argsort(-wrong[listed], kind="stable")]
    rest = shares.copy()
    rest[np.arange(len(labels)), labels] = -1
    likely = rest.argmax(1)
    names = source.outputs
    found = tuple(
        Suspect(
            int(places[row]),
            source.name(int(places[row])),
            names[labels[row]],
            names[likely[row]],
            float(wrong[row]),
            float(shares[row, labels[row]]),
            float(shares[row, likely[row]]),
        )
        for row in listed
    )
    expected = float(wrong[listed].sum())
    return Suspects(
        suspects=found,
        source=source,
        data=opened,
        samples=len(labels),
        noise=noise,
        temperature=temperature,
        precision=expected / max(len(listed), 1),
        recall=expected / max(float(wrong.sum()), 1e-12),
        agreement=float((logits.argmax(1) == labels).mean()),
        trainings=len(parts),
        answers=str(path),
    )


def fit(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Fit temperature and noise; return calibrated probabilities, N, C, and both.

    Args:
        logits: mean log probabilities of out-of-fold predictions, N, C.
        labels: the given labels.
    """
    rows, others = np.arange(len(labels)), logits.shape[1] - 1

    def loss(values: np.ndarray) -> float:
        scaled = logits * np.exp(values[0])
        own = np.exp(scaled[rows, labels] - special.logsumexp(scaled, axis=1))
        noise = special.expit(values[1])
        return -float(np.log((1 - noise) * own + noise * (1 - own) / others + 1e-300).mean())

    starts = [(0.0, -3.0), (1.0, -3.0), (0.0, -5.0)]
    best = min((optimize.minimize(loss, start, method="Nelder-Mead") for start in starts), key=lambda one: one.fun)
    sharpness, noise = float(np.exp(best.x[0])), float(special.expit(best.x[1]))
    return special.softmax(logits * sharpness, axis=1), 1 / sharpness, noise


def posterior(shares: np.ndarray, labels: np.ndarray, noise: float) -> np.ndarray:
    """Return the probability that each label is wrong, N."""
    own = shares[np.arange(len(labels)), labels]
    drawn = noise * (1 - own) / (shares.shape[1] - 1)
    return np.asarray(drawn / np.maximum(drawn + (1 - noise) * own, 1e-300))


def _arm_files(folder: Path, arm: str | None) -> list[Path]:
    """Return the files of an arm's predictions; default: the most accurate arm."""
    arms: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*-seed-*.safetensors")):
        arms.setdefault(file.name.rpartition("-seed-")[0], []).append(file)
    if not arms or (arm is not None and arm not in arms):
        raise RunError(f"{folder} has predictions of {', '.join(arms) or 'no arm'}; {arm or 'an arm'} was requested")
    if arm is not None:
        return arms[arm]

    def accuracy(files: list[Path]) -> float:
        return float(np.mean([read_tensors(file).get("correct", np.zeros(1)).mean() for file in files]))

    return max(arms.values(), key=accuracy)


def _joined(parts: list[dict[str, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return indices, labels and mean log probabilities over the trainings."""
    places = np.unique(np.concatenate([part["place"] for part in parts]))
    labels = np.zeros(len(places), np.int64)
    total, count = np.zeros((len(places), parts[0]["logits"].shape[1])), np.zeros(len(places))
    for part in parts:
        rows = np.searchsorted(places, part["place"])
        labels[rows] = part["label"]
        total[rows] += special.log_softmax(part["logits"].astype(np.float64), axis=1)
        count[rows] += 1
    return places, labels, total / count[:, None]
