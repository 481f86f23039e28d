"""Metrics of classifiers: accuracy, calibration, accuracy under attack."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ...data.feed import Batch
from ...data.source import Source
from ...statistics.bootstrap import Resampled, resample_means
from ...tasks.metric import MetricSpec
from ..judge import CLEAN, Judge
from ..opening import EvaluatedModel, EvaluatedSet, EvaluationError
from ..robust import add_means, mean_name
from .attacks import ZERO, Attack, attack_batch, is_right
from .labels import Truth, labelled_places, read_truth
from .measures import Answers, by_class, image_scores, read_answers, reliability, set_statistics
from .options import ClassOptions

TITLES = {
    "top1": "accuracy (top 1)",
    "top5": "top 5",
    "mean_class": "mean over classes",
    "mcc": "Matthews correlation",
    "nll": "negative log likelihood",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
    mean_name("top1"): "mean corruption accuracy",
}
NOT_PERCENTAGES = ("nll", "brier", "mcc")  # not percentages
LOWER = ("nll", "brier", "ece")  # lower is better


class ClassMetric(MetricSpec):
    """A metric of classifiers, shown with three digits."""

    def show(self, value: float) -> str:
        """Format a value."""
        return f"{value:.1%}" if self.share else f"{value:.3f}"


class ClassJudge(Judge):
    """Evaluates one classifier."""

    evenly = "evenly by class"
    attackable = True

    def __init__(self, model: EvaluatedModel, truth: Truth, attacks: Sequence[Attack]) -> None:
        super().__init__(model)
        self.truth, self.attacks = truth, attacks
        self.columns = torch.from_numpy(truth.columns).to(model.loaded.device)
        self.logits: list[Tensor] = []
        self.places: list[np.ndarray] = []
        self.scores: dict[str, np.ndarray] = {}

    @classmethod
    def check(cls, models: Sequence[EvaluatedModel], options: ClassOptions) -> None:  # noqa: ARG003
        """Refuse models with other classes than the first one's; their order does not matter."""
        first = models[0]
        for other in models[1:]:
            ours, theirs = first.spec.outputs, other.spec.outputs
            if len(ours) != len(theirs):
                raise EvaluationError(
                    f"{first.name} has {len(ours)} classes and {other.name} has {len(theirs)}; compared runs must "
                    "predict the same classes: evaluate them one by one, or give runs trained on the same classes"
                )
            if set(ours) != set(theirs):
                strange = sorted(set(theirs) - set(ours))
                raise EvaluationError(
                    f"{other.name} has classes that {first.name} lacks, such as {strange[0]!r}; evaluate them one by "
                    "one"
                )

    @classmethod
    def answerable(cls, source: Source, options: ClassOptions) -> np.ndarray:
        """Return the indices of labelled images."""
        return labelled_places(source, options.labels)

    @classmethod
    def align(cls, samples: EvaluatedSet, models: Sequence[EvaluatedModel]) -> EvaluatedSet:  # noqa: ARG003
        """Return the images unchanged: labels are mapped for each model."""
        return samples

    @classmethod
    def prepare(cls, models: Sequence[EvaluatedModel], samples: EvaluatedSet, options: ClassOptions) -> list[Self]:
        """Return a judge for each model, with labels mapped to its classes."""
        given: dict[str, Any] = {"places": samples.places, "labels": options.labels, "subset": options.subset}
        truths = [read_truth(samples.source, model.spec.outputs, whose=model.name, **given) for model in models]
        return [cls(model, truth, options.attacks) for model, truth in zip(models, truths, strict=True)]

    def ask(self, images: Tensor) -> Tensor:
        """Return the logits of the selected classes, B, K."""
        logits = self.model.ask(images)
        if logits.ndim != 2 or logits.shape[1] != len(self.model.spec.outputs):
            raise EvaluationError(
                f"{self.model.name} returns a tensor of shape {tuple(logits.shape)} and has "
                f"{len(self.model.spec.outputs)} classes; a classifier returns one number per class"
            )
        return logits[:, self.columns]

    def take(self, key: str, batch: Batch, images: Tensor | None) -> None:
        """Run the model on images under a condition; all logits of clean images are kept."""
        assert images is not None
        with torch.no_grad():
            logits = self.ask(images).cpu()
        place = batch["place"].numpy()
        if key == CLEAN:
            self.logits.append(logits)
            self.places.append(place)
        self._note(key, place, is_right(logits, torch.from_numpy(self.truth.valid[place])))

    def attack(self, batch: Batch, rng_keys: Sequence[int]) -> None:
        """Attack images with the model's gradients."""
        place, device = batch["place"].numpy(), self.model.loaded.device
        outcome = attack_batch(
            self.ask,
            batch["image"],
            torch.from_numpy(self.truth.valid[place]).to(device),
            attacks=self.attacks,
            right=torch.from_numpy(self.scores[CLEAN][place] > 0).to(device),
            rng_keys=rng_keys,
        )
        for key, values in outcome.items():
            self._note(key, place, values)

    def passes_back(self) -> float:
        """Return the most forward and backward passes of the attacks, which only use correctly classified images."""
        right = self.scores[CLEAN][np.concatenate(self.places)].mean()
        return float(right) * sum(attack.steps * attack.restarts for attack in self.attacks)

    def _note(self, key: str, place: np.ndarray, values: Tensor) -> None:
        """Store one number for each image."""
        self.scores.setdefault(key, np.zeros(len(self.truth.valid)))[place] = values.cpu().numpy()

    def _answers(self) -> Answers:
        return read_answers(torch.cat(self.logits).numpy(), self.truth.valid[np.concatenate(self.places)])

    def specs(self) -> dict[str, MetricSpec]:
        """Return the metrics of clean and corrupted images, then those of attacks."""
        titles = TITLES | {key: _attack_title(key) for key in self.scores if key.startswith(("fgsm.", "pgd."))}
        return {
            name: ClassMetric(name, words, larger_is_better=name not in LOWER, share=name not in NOT_PERCENTAGES)
            for name, words in titles.items()
        }

    def numbers(self, *, seed: int, resamples: int) -> dict[str, Resampled]:
        """Return every metric, over all images and over resamples."""
        answers, places = self._answers(), np.concatenate(self.places)
        conditions = {key: values[places] for key, values in self.scores.items() if key != CLEAN}
        columns = image_scores(answers) | conditions
        found = resample_means(
            columns,
            set_statistics(answers),
            count=len(places),
            seed=seed,
            resamples=resamples,
            shares=[name for name in columns if name not in NOT_PERCENTAGES],
            counted=[name for name in ("top1", "top5", *conditions) if name != ZERO],
        )
        found = add_means(found, "top1")
        return {name: found[name] for name in dict.fromkeys([*TITLES, *found]) if name in found}

    def details(self) -> dict[str, Any]:
        """Return per-class scores and the reliability bins."""
        answers = self._answers()
        return {"classes": by_class(answers, list(self.truth.classes)), "reliability": reliability(answers)}

    def notes(self) -> list[str]:
        """Return notes on label mapping and on vanishing gradients, which make FGSM ineffective."""
        found = list(self.truth.notes)
        if ZERO in self.scores and (hidden := self.scores[ZERO][np.concatenate(self.places)].mean()) > 0.01:
            found.append(
                f"the gradient of {self.model.name} is zero at {hidden:.0%} of the images: FGSM has no effect there, "
                "so rely on PGD, whose random starts and margin loss do not need the gradient at the image itself"
            )
        return found


def _attack_title(key: str) -> str:
    kind, _, epsilon = key.partition(".")
    return f"{kind.upper()} {epsilon}/255"
