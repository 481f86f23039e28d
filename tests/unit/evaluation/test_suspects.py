"""Labels that are probably wrong: found among answers, written to be corrected, and corrected in a copy."""

import csv
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from saccade.data.open import open_data
from saccade.evaluation.suspect_files import fix_labels, write_suspects
from saccade.evaluation.suspects import find_suspects, fit, posterior
from saccade.runs.run import RunError
from saccade.settings import ConfigError, TrainConfig, overlay, to_yaml
from support.trainings import png_folder


def answers(count=4000, classes=10, noise=0.05, strength=6.0, seed=0):
    """Return logits of a fair model (right nine times out of ten), labels with some swapped, and which."""
    draws = np.random.default_rng(seed)
    logits = draws.normal(0, 1, (count, classes))
    kinds = draws.integers(0, classes, count)
    logits[np.arange(count), kinds] += draws.gamma(4, strength / 4, count)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    truth = np.array([draws.choice(classes, p=row) for row in shares])
    swapped = draws.random(count) < noise
    labels = np.where(swapped, (truth + draws.integers(1, classes, count)) % classes, truth)
    return logits, labels, swapped


@pytest.mark.parametrize("scale", [0.4, 1.0, 2.5])
def test_noise_is_estimated_and_the_list_is_as_good_as_it_says_at_any_temperature(scale):
    logits, labels, swapped = answers()
    shares, temperature, noise = fit(logits * scale, labels)
    assert temperature == pytest.approx(scale, rel=0.1)
    assert noise == pytest.approx(0.05, abs=0.012)
    wrong = posterior(shares, labels, noise)
    listed = wrong >= 0.5
    precision = (listed & swapped).sum() / listed.sum()
    assert precision == pytest.approx(wrong[listed].mean(), abs=0.08)
    assert (listed & swapped).sum() / swapped.sum() == pytest.approx(wrong[listed].sum() / wrong.sum(), abs=0.1)


def test_clean_labels_are_left_alone():
    logits, labels, _ = answers(noise=0.0)
    shares, _, noise = fit(logits, labels)
    assert noise < 0.01
    assert (posterior(shares, labels, noise) >= 0.5).mean() < 0.005


@pytest.fixture
def judged(tmp_path):
    """A folder of images, one with a wrong label, and what folds answered."""
    data = png_folder(tmp_path / "set", train=9, val=3)
    shutil.move(data / "train" / "class0" / "000.png", data / "train" / "class1" / "zero.png")
    whole = open_data(str(data), folds=3).whole
    folder = tmp_path / "folds"
    run = folder / "runs" / "base-0" / "seed-0"
    run.mkdir(parents=True)
    config = overlay(TrainConfig(), {"data.path": str(data), "data.folds": 3})
    (run / "config.yaml").write_text(to_yaml(config))
    truth = np.array([0 if whole.name(n).endswith("zero.png") else whole.labels[n] for n in range(len(whole))])
    logits = torch.from_numpy(np.eye(3)[truth] * 8).float()
    (folder / "out_of_fold").mkdir()
    labels = torch.from_numpy(whole.labels)
    kept = {"place": torch.arange(len(whole)), "label": labels, "logits": logits}
    save_file(kept | {"correct": torch.ones(len(whole))}, folder / "out_of_fold" / "base-seed-0.safetensors")
    return folder, data, whole


def test_a_wrong_label_is_shown_listed_and_corrected_in_a_list_of_its_own(judged, tmp_path):
    folder, data, whole = judged
    before = sorted(str(file) for file in data.rglob("*"))
    found = find_suspects(folder)
    assert [(one.name, one.given, one.likely) for one in found.suspects] == [
        ("train/class1/zero.png", "class1", "class0")
    ]
    page, table = write_suspects(found, tmp_path / "look")
    text = page.read_text()
    assert "class0</strong> rather than class1" in text
    assert "data:image/png" in text
    assert fix_labels(found, table, tmp_path / "fixed" / "list.csv") == 1
    fixed = open_data(str(tmp_path / "fixed" / "list.csv"))
    labels = {fixed.train.name(n).rpartition("/")[2]: fixed.train.targets.describe(n) for n in range(len(fixed.train))}
    assert labels["zero.png"] == "class0"
    assert len(fixed.train) == len(whole)
    assert len(fixed.val) == 3
    assert sorted(str(file) for file in data.rglob("*")) == before


def test_answers_that_are_mostly_wrong_are_not_to_be_relied_on(judged):
    folder, _, _ = judged
    assert "Do not rely" not in find_suspects(folder).sentence
    file = folder / "out_of_fold" / "base-seed-0.safetensors"
    kept = load_file(file)
    save_file(kept | {"logits": kept["logits"].roll(1, dims=1)}, file)
    assert "Do not rely on this: the predictions agree with only" in find_suspects(folder).sentence


def test_a_row_taken_out_is_left_as_it_is_and_a_wrong_one_is_refused(judged, tmp_path):
    folder, _, _ = judged
    found = find_suspects(folder)
    _, table = write_suspects(found, tmp_path / "look")
    rows = list(csv.reader(table.open()))
    csv.writer(table.open("w", newline="")).writerows([rows[0], [*rows[1][:3], "dragon", *rows[1][4:]]])
    with pytest.raises(ConfigError, match=r"line 2: 'dragon' is not a class; the classes are class0"):
        fix_labels(found, table, tmp_path / "list.csv")
    assert not (tmp_path / "list.csv").exists()
    csv.writer(table.open("w", newline="")).writerows(rows[:1])
    assert fix_labels(found, table, tmp_path / "list.csv") == 0
    with pytest.raises(ConfigError, match="already exists"):
        fix_labels(found, table, tmp_path / "list.csv")


def test_answers_about_other_labels_and_arms_that_are_not_there_are_refused(judged):
    folder, data, _ = judged
    with pytest.raises(RunError, match="has predictions of base; other was requested"):
        find_suspects(folder, arm="other")
    shutil.move(data / "train" / "class2" / "002.png", data / "train" / "class0" / "later.png")
    with pytest.raises(RunError, match="have changed since"):
        find_suspects(folder)


def test_a_comparison_without_folds_is_named_as_one_with_what_to_give(tmp_path):
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(RunError, match=r"is a comparison without folds.*give one of its runs"):
        find_suspects(tmp_path)
