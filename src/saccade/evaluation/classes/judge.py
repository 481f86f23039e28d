"""What a classifier's answers come to: accuracy, calibration, and what attacks make of it."""

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
PLAIN = ("nll", "brier", "mcc")  # not shares of anything
LOWER = ("nll", "brier", "ece")  # better when lower


class ClassMetric(MetricSpec):
    """A number that a classifier is judged by, told with three digits."""

    def show(self, value: float) -> str:
        """Return a value for people."""
        return f"{value:.1%}" if self.share else f"{value:.3f}"


class ClassJudge(Judge):
    """Measures one classifier."""

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
        """Refuse runs that answer with other classes than the first; their order is nobody's matter."""
        first = models[0]
        for other in models[1:]:
            ours, theirs = first.spec.outputs, other.spec.outputs
            if len(ours) != len(theirs):
                raise EvaluationError(
                    f"{first.name} has {len(ours)} classes and {other.name} has {len(theirs)}; runs side by side "
                    "answer the same question: evaluate them one by one, or give runs trained on the same classes"
                )
            if set(ours) != set(theirs):
                strange = sorted(set(theirs) - set(ours))
                raise EvaluationError(
                    f"{other.name} has classes that {first.name} lacks, such as {strange[0]!r}; evaluate them one by "
                    "one"
                )

    @classmethod
    def answerable(cls, source: Source, options: ClassOptions) -> np.ndarray:
        """Return the places of the images that have a label."""
        return labelled_places(source, options.labels)

    @classmethod
    def align(cls, samples: EvaluatedSet, models: Sequence[EvaluatedModel]) -> EvaluatedSet:  # noqa: ARG003
        """Return the images as they are: each model has its own truth."""
        return samples

    @classmethod
    def prepare(cls, models: Sequence[EvaluatedModel], samples: EvaluatedSet, options: ClassOptions) -> list[Self]:
        """Return one for each model, with the right answers in its own classes."""
        given: dict[str, Any] = {"places": samples.places, "labels": options.labels, "subset": options.subset}
        truths = [read_truth(samples.source, model.spec.outputs, whose=model.name, **given) for model in models]
        return [cls(model, truth, options.attacks) for model, truth in zip(models, truths, strict=True)]

    def ask(self, images: Tensor) -> Tensor:
        """Return the logits of the classes that can be answered, B, K."""
        logits = self.model.ask(images)
        if logits.ndim != 2 or logits.shape[1] != len(self.model.spec.outputs):
            raise EvaluationError(
                f"{self.model.name} answers with a tensor of shape {tuple(logits.shape)} and has "
                f"{len(self.model.spec.outputs)} classes; a classifier answers with one number a class"
            )
        return logits[:, self.columns]

    def take(self, key: str, batch: Batch, images: Tensor | None) -> None:
        """Ask about images under a condition; of the clean ones all logits are kept."""
        assert images is not None
        with torch.no_grad():
            logits = self.ask(images).cpu()
        place = batch["place"].numpy()
        if key == CLEAN:
            self.logits.append(logits)
            self.places.append(place)
        self._note(key, place, is_right(logits, torch.from_numpy(self.truth.valid[place])))

    def attack(self, batch: Batch, rng_keys: Sequence[int]) -> None:
        """Attack images by the model's own gradients."""
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
        """Return how many passes forward and back attacks may take: only what is answered rightly is attacked."""
        right = self.scores[CLEAN][np.concatenate(self.places)].mean()
        return float(right) * sum(attack.steps * attack.restarts for attack in self.attacks)

    def _note(self, key: str, place: np.ndarray, values: Tensor) -> None:
        """Keep one number an image, at its place."""
        self.scores.setdefault(key, np.zeros(len(self.truth.valid)))[place] = values.cpu().numpy()

    def _answers(self) -> Answers:
        return read_answers(torch.cat(self.logits).numpy(), self.truth.valid[np.concatenate(self.places)])

    def specs(self) -> dict[str, MetricSpec]:
        """Return the numbers of clean and corrupted images, then those of attacks."""
        titles = TITLES | {key: _attack_title(key) for key in self.scores if key.startswith(("fgsm.", "pgd."))}
        return {
            name: ClassMetric(name, words, larger_is_better=name not in LOWER, share=name not in PLAIN)
            for name, words in titles.items()
        }

    def numbers(self, *, seed: int, resamples: int) -> dict[str, Resampled]:
        """Return every number, over all images and over resamples of them."""
        answers, places = self._answers(), np.concatenate(self.places)
        conditions = {key: values[places] for key, values in self.scores.items() if key != CLEAN}
        columns = image_scores(answers) | conditions
        found = resample_means(
            columns,
            set_statistics(answers),
            count=len(places),
            seed=seed,
            resamples=resamples,
            shares=[name for name in columns if name not in PLAIN],
            counted=[name for name in ("top1", "top5", *conditions) if name != ZERO],
        )
        found = add_means(found, "top1")
        return {name: found[name] for name in dict.fromkeys([*TITLES, *found]) if name in found}

    def details(self) -> dict[str, Any]:
        """Return the classes' scores and the answers by confidence."""
        answers = self._answers()
        return {"classes": by_class(answers, list(self.truth.classes)), "reliability": reliability(answers)}

    def notes(self) -> list[str]:
        """Return how labels were read, and whether the model hides its gradient, which makes FGSM look harmless."""
        found = list(self.truth.notes)
        if ZERO in self.scores and (hidden := self.scores[ZERO][np.concatenate(self.places)].mean()) > 0.01:
            found.append(
                f"{self.model.name} has no gradient at {hidden:.0%} of the images: FGSM finds nothing there, so look "
                "at PGD, whose random starts and margin loss need none at the image itself"
            )
        return found


def _attack_title(key: str) -> str:
    kind, _, epsilon = key.partition(".")
    return f"{kind.upper()} {epsilon}/255"
