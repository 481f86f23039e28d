"""Folds of a set: alike in their classes, groups whole, the same whatever the order."""

import csv

import numpy as np
import pytest
from PIL import Image

from saccade.data.folds import choose_folds
from saccade.data.open import open_data
from saccade.data.source import ArraySource
from saccade.settings import DataConfig
from saccade.tasks.opening import open_samples


def source_of(labels):
    labels = np.asarray(labels)
    classes = [f"c{n}" for n in range(labels.max() + 1)]
    return ArraySource(np.zeros((len(labels), 2, 2, 3), np.uint8), labels, classes=classes)


@pytest.mark.parametrize("folds", [2, 3, 5, 10])
def test_every_class_is_spread_evenly_and_folds_are_of_one_size(folds):
    labels = np.repeat(np.arange(7), [10, 11, 12, 13, 20, 31, 50])
    chosen = choose_folds(source_of(labels), None, folds=folds, seed=0)
    for label in range(7):
        counts = np.bincount(chosen[labels == label], minlength=folds)
        assert counts.max() - counts.min() <= 1
    sizes = np.bincount(chosen, minlength=folds)
    assert sizes.max() - sizes.min() <= 1


def test_folds_follow_names_and_seed_not_order():
    source = source_of(np.arange(60) % 3)
    first = choose_folds(source, None, folds=5, seed=0)
    turned = np.random.default_rng(0).permutation(60)
    assert np.array_equal(choose_folds(source.subset(turned), None, folds=5, seed=0), first[turned])
    assert not np.array_equal(choose_folds(source, None, folds=5, seed=1), first)


@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_on_two_sides_and_classes_stay_in_proportion(seed):
    draws = np.random.default_rng(seed)
    groups = [f"patient {n}" for n in np.repeat(np.arange(40), draws.integers(1, 12, 40))]
    labels = draws.integers(0, 3, len(groups))
    chosen = choose_folds(source_of(labels), groups, folds=4, seed=seed)
    for one in set(groups):
        assert len(set(chosen[[g == one for g in groups]])) == 1
    for label in range(3):
        counts = np.bincount(chosen[labels == label], minlength=4)
        assert counts.max() <= 2 * max(counts.min(), 1)


def test_more_folds_than_groups_are_refused():
    with pytest.raises(ValueError, match="folds=4, but there are only 3 groups"):
        choose_folds(source_of([0, 1, 0, 1, 0, 1]), list("aabbcc"), folds=4, seed=0)


@pytest.fixture
def patients(tmp_path):
    draws = np.random.default_rng(0)
    rows = []
    for number in range(40):
        Image.fromarray(draws.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
        rows.append((f"{number}.png", "ill" if number % 2 else "well", f"p{number // 4}"))
    with (tmp_path / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "Patient"), *rows])
    return tmp_path / "list.csv", {name: patient for name, _, patient in rows}


def test_the_part_held_out_by_train_has_patients_of_its_own(patients):
    path, patient_of = patients
    data = open_data(str(path), group="patient", val_share=0.2)
    sides = [{patient_of[part.name(n)] for n in range(len(part))} for part in (data.train, data.val)]
    assert not sides[0] & sides[1]
    assert len(data.val) == 8
    assert set(data.val.labels) == {0, 1}


def test_folds_of_a_list_hold_every_sample_once_and_patients_whole(patients):
    path, patient_of = patients
    seen = []
    for fold in range(5):
        _, data = open_samples(None, DataConfig(path=str(path), group="Patient", folds=5, fold=fold))
        sides = [{patient_of[part.name(n)] for n in range(len(part))} for part in (data.train, data.val)]
        assert not sides[0] & sides[1]
        assert [data.whole.name(n) for n in data.held] == [data.val.name(n) for n in range(len(data.val))]
        seen += data.held.tolist()
    assert sorted(seen) == list(range(40))


def test_a_column_that_is_not_there_or_a_set_without_columns_is_refused(patients, tmp_path):
    path, _ = patients
    with pytest.raises(ValueError, match=r"columns 'path', 'label', 'Patient'; it needs a column 'ward'"):
        open_data(str(path), group="ward")
    with pytest.raises(ValueError, match="is not a list"):
        open_data("", group="patient")


def test_a_patient_in_both_splits_of_a_list_is_refused(tmp_path, patients):
    path, _ = patients
    rows = list(csv.reader(path.open()))
    split = [[*rows[0], "split"]] + [[*row, "val" if place % 3 == 0 else "train"] for place, row in enumerate(rows[1:])]
    csv.writer(path.open("w", newline="")).writerows(split)
    with pytest.raises(ValueError, match="have samples in both splits"):
        open_data(str(path), group="patient")


def test_the_sets_own_validation_part_is_left_alone(tmp_path, patients):
    path, _ = patients
    rows = list(csv.reader(path.open()))
    split = [[*rows[0], "split"]] + [[*row, "val" if place >= 30 else "train"] for place, row in enumerate(rows[1:])]
    csv.writer(path.open("w", newline="")).writerows(split)
    data = open_data(str(path), folds=3, fold=2)
    assert len(data.whole) == 30
    assert len(data.unused) == 10
    assert any("10 validation samples are not used" in note for note in data.notes)
    with pytest.raises(ValueError, match="numbered from 0"):
        open_data(str(path), folds=3, fold=3)
    with pytest.raises(ValueError, match="folds are parts of the training samples"):
        open_data(str(path), folds=3, val=str(path))
