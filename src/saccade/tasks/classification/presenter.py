"""Presenter of classification: top classes; accuracy, confusion, calibration and worst images of a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...report.axes import number
from ...report.class_sections import MAX_NAME, calibration_section, class_section, confusion_section
from ...report.markup import Html, join, shorten, tag
from ...report.page import Section, paragraph
from ...report.tally import Answered
from ...statistics.proportion import wilson
from ..answer import Answer
from ..page import Shown, no_images, worst_section
from ..presenter import RankedPresenter

ABOUT_INTERVAL = (
    "The interval (Wilson) covers the uncertainty from the choice of these validation images. It says nothing about "
    "other seeds or other kinds of images."
)
ABOUT_IMAGES = (
    "The validation images with the highest loss, confident mistakes first. Wrong labels and damaged images often "
    "appear here, so check the labels before blaming the model."
)


class OneOfPresenter(RankedPresenter):
    """Presents models that predict one of their outputs."""

    outputs_key = "classes"

    def describe(self, row: np.ndarray, *, top: int = 5) -> Answer:
        """Return the top classes, most probable first."""
        order = np.argsort(-row, kind="stable")[:top]
        rows = tuple((self.spec.outputs[i], _percent(row[i]), float(row[i])) for i in order)
        classes = [{"class": self.spec.outputs[i], "index": int(i), **_probability(_finite(row[i]))} for i in order]
        record = {"answer": classes[0]["class"], **_probability(classes[0]["probability"]), "classes": classes}
        return Answer(rows[0][0], rows, record, said=(rows[0][0],))

    def table_head(self, *, top: int = 5) -> list[str]:
        """Return columns for the top classes and their confidence."""
        top = min(top, len(self.spec.outputs))
        more = [part for n in range(2, top + 1) for part in (f"class_{n}", f"confidence_{n}")]
        return ["class", "confidence", *more]

    def same(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return whether both predict the same class."""
        return first.argmax(1) == second.argmax(1)


class ClassPresenter(OneOfPresenter):
    """Presents classes; JSON lines include less probable classes."""

    def line_record(self, answer: Answer) -> dict[str, Any]:
        """Return classes and probabilities, most probable first."""
        return {"answers": [{"class": name, **_probability(round(share or 0.0, 6))} for name, _, share in answer.rows]}


class ClassificationPresenter(ClassPresenter):
    """Presents classes of images."""

    note = ABOUT_INTERVAL

    def sentence(self, shown: Shown) -> Html:
        """Return the accuracy, and whether it exceeds the frequency of the largest class."""
        result = _result(shown)
        if result is None:
            return self.unfinished(shown)
        correct, count = result
        low, high = wilson(correct, count)
        answered = _answered(shown)
        opening = join(
            shown.model,
            f", trained on {shorten(shown.data, 120)}, predicts the right class for ",
            tag("strong", f"{correct / count:.1%}"),
            f" of {count:,} validation images of {len(_classes(shown, answered)):,} classes (95% interval {low:.1%} "
            f"to {high:.1%}).",
        )
        if answered is None or not len(answered):
            return opening
        commonest = float(np.bincount(answered.labels).max() / len(answered))
        verdict = "" if low > commonest else " The model has not been shown to do better than that."
        return join(opening, f" Always predicting the most frequent class would be right for {commonest:.1%}.{verdict}")

    def facts(self, shown: Shown) -> list[tuple[str, str, str]]:
        """Return accuracy with its interval, and the loss."""
        found = []
        if result := _result(shown):
            low, high = wilson(*result)
            found.append(("Accuracy", f"{shown.value('top1'):.2%}", f"95% interval {low:.1%} to {high:.1%}"))
        if (top5 := shown.value("top5")) is not None:
            found.append(("Top-5 accuracy", f"{top5:.2%}", ""))
        if (loss := shown.summary.get("val_loss")) is not None:
            found.append(("Validation loss", number(loss), "cross-entropy"))
        return found

    def sections(self, shown: Shown) -> list[Section]:
        """Return sections on per-class accuracy, confusion, calibration and the worst images."""
        answered = _answered(shown)
        if answered is None or not len(answered):
            return []
        classes = _classes(shown, answered)
        found = [class_section(answered, classes), confusion_section(answered, classes), calibration_section(answered)]
        source = shown.source
        known = source is not None and shown.same_samples and source.labels[answered.places]
        if not np.array_equal(known, answered.labels):
            return [*found, no_images(shown, "The worst images")]
        return [*found, image_section(shown, answered, classes)]


def image_section(shown: Shown, answered: Answered, classes: Sequence[str]) -> Section:
    """Return a section with the images of highest loss, their labels and predictions."""

    def names(index: int) -> list[str]:
        return [shorten(classes[of[index]], MAX_NAME) for of in (answered.labels, answered.predictions)]

    def tell(_: Shown, index: int) -> list[Html]:
        true, answer = names(index)
        said = f"{' (right)' if answered.correct[index] else ''}, {answered.confidence[index]:.0%} sure"
        return [paragraph("true: ", tag("strong", true)), paragraph("answered: ", tag("strong", answer), said)]

    def alt(index: int) -> str:
        true, answer = names(index)
        return f": {true}, predicted {answer}"

    return worst_section(shown, answered.loss, tell, about=ABOUT_IMAGES, alt=alt)


def _answered(shown: Shown) -> Answered | None:
    names = ("place", "label", "prediction", "confidence", "loss")
    if any(name not in shown.predictions for name in names):
        return None
    return Answered(*(shown.predictions[name] for name in names))


def _classes(shown: Shown, answered: Answered | None) -> Sequence[str]:
    """Return class names; unnamed classes get numbers."""
    most = 0
    if answered is not None and len(answered):
        most = int(max(answered.labels.max(), answered.predictions.max())) + 1
    known = [str(name) for name in shown.outputs]
    return known + [f"class {index}" for index in range(len(known), most)]


def _result(shown: Shown) -> tuple[int, int] | None:
    """Return the numbers of correct predictions and of images."""
    share = shown.value("top1")
    return (round(share * shown.count), shown.count) if shown.count and share is not None else None


def _percent(value: np.floating) -> str:
    return f"{value:.1%}" if np.isfinite(value) else "not a number"


def _probability(value: float | None) -> dict[str, float | None]:
    """Return a probability under its key, and under that of earlier versions."""
    return {"probability": value, "share": value}


def _finite(value: np.floating) -> float | None:
    """Return a finite number for JSON."""
    return float(value) if np.isfinite(value) else None
