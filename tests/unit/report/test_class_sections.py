import numpy as np
import pytest

from saccade.report.class_sections import (
    BEST,
    WORST,
    calibration_section,
    class_section,
    confusion_section,
)
from saccade.report.tally import Answered
from saccade.statistics import wilson
from saccade.tasks.classification.presenter import image_section
from saccade.tasks.page import IMAGES, Shown
from support.markup import parse


def make(num_classes, *, each=4, seed=0):
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_classes), each)
    wrong = random.random(len(labels)) < np.linspace(0.1, 0.9, num_classes)[labels]
    predictions = np.where(wrong, (labels + 1) % num_classes, labels)
    places = np.arange(len(labels))
    return Answered(
        places, labels, predictions, random.uniform(0.2, 1, len(labels)), random.exponential(size=len(labels))
    )


class Images:
    """Validation images as a page reads them."""

    def __init__(self, count, read, name=str):
        self.count, self.read, self.name = count, read, name

    def __len__(self):
        return self.count


def worst(given, count, read, name=str):
    source = Images(len(given), read, name)
    kept = {"place": given.places}
    shown = Shown("a model", "a set", {}, (), names(count), (), "top1", predictions=kept, source=source)
    return image_section(shown, given, names(count)).body


def names(count):
    return [f"<class {index}>" for index in range(count)]


def test_few_classes_are_all_shown_worst_first_with_their_counts():
    given = make(5, each=20)
    document = parse(class_section(given, names(5)).body)
    rows = document.rows("Accuracy by class")
    expected = {}
    for index, name in enumerate(names(5)):
        mine = given.labels == index
        right, count = int(given.correct[mine].sum()), int(mine.sum())
        low, high = wilson(right, count)
        expected[name] = [f"{right / count:.1%} {low:.1%} to {high:.1%}", f"{right} of {count}"]
    assert {row[0]: row[2:] for row in rows} == expected
    shares = [float(row[2].split("%")[0]) for row in rows]
    assert shares == sorted(shares)


def test_many_classes_show_worst_and_best_and_fold_the_rest():
    document = parse(class_section(make(100), names(100)).body)
    worst, best = document.rows("The 20 classes with the lowest"), document.rows("The 5 classes with the highest")
    rest = document.rows("The other 75 classes")
    assert (len(worst), len(best), len(rest)) == (WORST, BEST, 75)
    assert {row[0] for row in worst + best + rest} == set(names(100))
    tables = document.all("table")
    assert ["details" in element.inside for element in tables] == [False, False, True]


def test_classes_without_images_are_named():
    given = make(3)
    text = parse(class_section(given, [*names(3), "never <seen>"]).body).all("p", "note")[0].text
    assert text == "Without validation images: never <seen>."


def test_confusions_of_few_classes_are_a_map_whose_cells_are_the_counts():
    given = make(4, each=10)
    document = parse(confusion_section(given, names(4)).body)
    tips = [group.text for group in document.all("g")]
    assert len(tips) == 16
    count = int(((given.labels == 3) & (given.predictions == 0)).sum())
    assert any(tip.startswith(f"<class 3> → <class 0>: {count} of 10 ({count / 10:.1%})") for tip in tips)


def test_confusions_of_many_classes_are_a_table_of_pairs():
    document = parse(confusion_section(make(31, each=10), names(31)).body)
    rows = document.rows("The 20 pairs")
    assert not document.all("svg")
    counts = [int(row[2].split()[0]) for row in rows]
    assert counts == sorted(counts, reverse=True)
    assert rows[0][0] != rows[0][1]


@pytest.mark.parametrize("count", [3, 50])
def test_a_perfect_model_confuses_nothing(count):
    given = make(count)
    perfect = Answered(given.places, given.labels, given.labels, given.confidence, given.loss)
    assert "No image was misclassified" in confusion_section(perfect, names(count)).body
    assert parse(class_section(perfect, names(count)).body).all("table")


def test_worst_images_come_by_loss_and_unreadable_ones_are_skipped():
    given = make(10)
    order = [int(place) for place in np.argsort(-given.loss)]
    asked = []

    def read(place):
        asked.append(place)
        return None if place in order[:2] else np.full((8, 8, 3), place, np.uint8)

    body = worst(given, 10, read, lambda place: f"<{place}>.png")
    document = parse(body)
    items = document.all("li")
    assert len(items) == IMAGES
    assert asked == order[: IMAGES + 2]
    shown = order[2]
    assert items[0].text.startswith(f"true: <class {given.labels[shown]}>answered: <class {given.predictions[shown]}>")
    assert f"{given.confidence[shown]:.0%} sure" in items[0].text
    assert items[0].text.endswith(f"<{shown}>.png")
    assert document.all("img")[0].attrs["alt"].startswith(f"<{shown}>.png: <class")


def test_no_readable_image_is_said():
    body = worst(make(2), 2, lambda _: None)
    assert "No image could be read" in body


def test_calibration_tells_confidence_and_accuracy():
    given = make(4, each=50)
    body = calibration_section(given).body
    assert f"mean confidence is {given.confidence.mean():.1%}" in body
    assert f"right in {given.correct.mean():.1%}" in body
    rows = parse(body).rows("Predictions in bins")
    assert sum(int(row[2]) for row in rows) == 200


def test_a_diverged_model_is_told_as_such():
    given = make(2)
    nan = np.full(len(given), np.nan)
    lost = Answered(given.places, given.labels, given.predictions, nan, nan)
    assert "training diverged" in calibration_section(lost).body
    images = worst(lost, 2, lambda _: np.zeros((4, 4), np.uint8))
    assert len(parse(images).all("li")) == len(given)
