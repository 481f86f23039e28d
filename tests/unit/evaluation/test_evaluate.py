import json
import shutil

import numpy as np
import pytest

from saccade.building.build import build_model
from saccade.data.open import open_data
from saccade.data.spec import InputSpec
from saccade.evaluation.classes.labels import LabelError
from saccade.evaluation.evaluate import evaluate
from saccade.evaluation.inference import describe_remaining
from saccade.evaluation.opening import EvaluationError
from saccade.runs.run import Run
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig, TrainConfig, overlay
from support.markup import parse
from support.trainings import TINY, png_folder

CLASSES = ("class0", "class1", "class2")


def make_run(path, images, *, seed=0, classes=CLASSES, fingerprint=None, img_size=16):
    """Write a run of random weights, as training leaves it."""
    config = overlay(TrainConfig(), {"data.path": str(images), "model.name": "glnet_nano", "model.options": TINY})
    run = Run.create(path, config)
    spec = InputSpec(classes, in_chans=3, img_size=img_size, mean=[0.5] * 3, std=[0.25] * 3, shorter=img_size + 2)
    model = ModelConfig(name="glnet_nano", options=TINY)
    save_model(run.weights, build_model(model, spec, seed=seed).state_dict(), model, spec)
    validation = {"fingerprint": fingerprint or open_data(str(images)).val.fingerprint()}
    (path / "summary.json").write_text(json.dumps({"validation": validation}))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluate")
    png_folder(root / "set", train=6, val=12)
    make_run(root / "one", root / "set")
    make_run(root / "two", root / "set", seed=1)
    return root


@pytest.fixture(scope="module")
def robust(place):
    """Two runs side by side under every condition, in batches of five."""
    pair = [place / "one", place / "two"]
    return evaluate(pair, robust=True, epsilons=(2, 16), steps=3, batch_size=5, quiet=True, out=place / "out")


def record(result):
    return {key: value for key, value in result.to_dict().items() if key != "seconds"}


def test_numbers_are_those_of_the_models_answers(place):
    from saccade.building.build import load_model
    from saccade.data.augment import Normalize
    from saccade.data.framing import Framing

    found = evaluate(place / "one", quiet=True)
    model, spec = load_model(place / "one")
    held = open_data(str(place / "set")).val
    framing, normalize = Framing(16, shorter=18), Normalize(spec.mean, spec.std)
    right = [int(model(normalize(framing(held.read(i))[None])).argmax()) == held.labels[i] for i in range(len(held))]
    assert found.samples == 12
    assert found.metrics()["top1"] == pytest.approx(np.mean(right))
    assert "top5" not in found.metrics()
    assert sum(score.correct for score in found.run().classes) == sum(right)
    for estimate in found.run().metrics.values():
        assert estimate.low <= estimate.high
    assert not found.notes


def test_every_condition_is_measured_for_every_run(robust):
    names = set(robust.metrics("one"))
    assert names == set(robust.metrics("two"))
    assert {"robust.mean_corruption_top1", "fgsm.2", "pgd.16", "centre_occlusion.0.25", "patch_shuffle.4"} <= names
    assert sum(name.startswith("corruption.") and name.count(".") == 2 for name in names) == 75
    means = [v for name, v in robust.metrics().items() if name.startswith("corruption.") and name.count(".") == 2]
    assert robust.metrics()["robust.mean_corruption_top1"] == pytest.approx(np.mean(means))


def test_attacks_only_lower_accuracy(robust):
    for name in robust.runs:
        m = robust.metrics(name)
        assert m["pgd.16"] <= m["fgsm.16"] <= m["top1"]
        assert m["pgd.16"] <= m["pgd.2"] <= m["fgsm.2"] <= m["top1"]


def test_differences_are_paired_and_signed(robust):
    found = robust.difference("two", "top1")
    assert found.value == pytest.approx(robust.metrics("two")["top1"] - robust.metrics("one")["top1"])
    assert found.gained - found.lost == round(12 * found.value)
    assert found.low <= found.value <= found.high
    assert 0 < found.p_value <= 1
    assert robust.difference("two", "ece").p_value is None
    assert robust.difference("two", "robust.mean_corruption_top1").p_value is None


def test_same_seed_gives_the_same_file_and_batches_change_nothing(place, robust):
    options = {"robust": True, "epsilons": (2, 16), "steps": 3, "quiet": True}
    again = evaluate([place / "one", place / "two"], batch_size=12, **options)
    ours, theirs = record(robust), record(again)
    for run, other in zip(ours["runs"], theirs["runs"], strict=True):
        for name, found in run["metrics"].items():
            assert found == pytest.approx(other["metrics"][name], abs=2e-6), name
    assert ours["settings"] == theirs["settings"]


def test_same_call_gives_the_same_json(place):
    first, second = (evaluate(place / "one", quiet=True, seed=3, limit=7) for _ in range(2))
    assert json.dumps(record(first)) == json.dumps(record(second))
    assert first.samples == 7


def test_limit_takes_classes_evenly_and_by_seed(place):
    few = evaluate(place / "one", limit=6, quiet=True)
    assert [score.samples for score in few.run().classes] == [2, 2, 2]


def test_page_stands_alone_and_says_what_the_json_says(place, robust):
    text = (place / "out" / "evaluation.html").read_text()
    page = parse(text)
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert {"Differences", "Corruptions", "Attacks", "Calibration"} <= {e.text for e in page.all("h2")}
    top = robust.run("one").metrics["top1"].value
    assert f"{top:.1%}" in page.rows("12 samples")[0][1]
    stored = json.loads((place / "out" / "evaluation.json").read_text())
    assert stored["runs"][0]["metrics"]["top1"]["value"] == pytest.approx(top)


def test_evaluation_is_replaced_only_when_asked(place, tmp_path):
    found = evaluate(place / "one", quiet=True, out=tmp_path / "e")
    assert found.page == tmp_path / "e" / "evaluation.html"
    before = (tmp_path / "e" / "evaluation.json").read_bytes()
    again = evaluate(place / "one", quiet=True, out=tmp_path / "e", seed=1)
    assert again.page == tmp_path / "e-2" / "evaluation.html"
    assert json.loads((tmp_path / "e-2" / "evaluation.json").read_text())["settings"]["seed"] == 1
    assert (tmp_path / "e" / "evaluation.json").read_bytes() == before
    third = evaluate(place / "one", quiet=True, out=tmp_path / "e", seed=1, overwrite=True)
    assert third.page == found.page
    assert (tmp_path / "e" / "evaluation.json").read_bytes() != before
    with pytest.raises(FileExistsError, match="--overwrite"):
        found.save(tmp_path / "e")
    found.save(tmp_path / "e", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e", "e-2"]
    with pytest.raises(FileExistsError, match="not an evaluation folder"):
        found.save(place / "one", overwrite=True)
    assert (place / "one" / "model.safetensors").exists()


def test_models_are_looked_for_before_anything_else(place, tmp_path):
    evaluate(place / "one", quiet=True, out=tmp_path / "e")
    with pytest.raises(
        ValueError, match=r"nope does not exist, and timm has no model of that name.*give a run directory"
    ):
        evaluate([place / "one", "nope"], quiet=True, out=tmp_path / "e")


def test_failed_page_leaves_nothing_behind(place, tmp_path, monkeypatch):
    from saccade.evaluation import result

    found = evaluate(place / "one", quiet=True)
    monkeypatch.setattr(result, "render", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        found.save(tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


def test_run_with_another_class_count_is_refused(place, tmp_path):
    make_run(tmp_path / "four", place / "set", classes=(*CLASSES, "class3"))
    with pytest.raises(EvaluationError, match=r"one has 3 classes and four has 4"):
        evaluate([place / "one", tmp_path / "four"], quiet=True)


def test_images_of_other_classes_are_refused_unless_mapped(place, tmp_path):
    shutil.copytree(place / "set" / "val", tmp_path / "other")
    (tmp_path / "other" / "class2").rename(tmp_path / "other" / "dog")
    with pytest.raises(LabelError, match=r"one does not have 'dog'"):
        evaluate(place / "one", tmp_path / "other", quiet=True)
    names = {"class0": "class0", "class1": "class1", "dog": "class2"}
    (tmp_path / "map.json").write_text(json.dumps(names))
    mapped = evaluate(place / "one", tmp_path / "other", labels=tmp_path / "map.json", quiet=True)
    assert mapped.metrics()["top1"] == evaluate(place / "one", quiet=True).metrics()["top1"]


def test_files_that_are_no_images_are_named_and_not_counted(place, tmp_path):
    shutil.copytree(place / "set" / "val", tmp_path / "set")
    (tmp_path / "set" / "class0" / "000.png").write_text("not an image")
    with pytest.warns(UserWarning, match="not an image"):
        found = evaluate(place / "one", tmp_path / "set", quiet=True)
    assert found.samples == 11
    assert any("class0/000.png" in note for note in found.notes)
    for file in (tmp_path / "set").rglob("*.png"):
        file.write_text("nor is this")
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.raises(EvaluationError, match="no sample can be read"),
    ):
        evaluate(place / "one", tmp_path / "set", quiet=True)


def test_changed_validation_images_are_told(place, tmp_path):
    make_run(tmp_path / "old", place / "set", fingerprint="0" * 64)
    found = evaluate(tmp_path / "old", quiet=True)
    assert any("validated on different samples" in note for note in found.notes)


def test_weights_alone_need_images(place, tmp_path):
    shutil.copy(place / "one" / "model.safetensors", tmp_path / "weights.safetensors")
    with pytest.raises(EvaluationError, match="--data"):
        evaluate(tmp_path / "weights.safetensors", quiet=True)
    assert evaluate(tmp_path / "weights.safetensors", place / "set", quiet=True).samples == 12


def test_runs_validated_on_different_images_are_refused(place, tmp_path):
    png_folder(tmp_path / "set", train=6, val=9)
    make_run(tmp_path / "three", tmp_path / "set")
    with pytest.raises(EvaluationError, match=r"12 samples of set, three on 9 different samples.*--data"):
        evaluate([place / "one", tmp_path / "three"], quiet=True)


def test_several_right_labels_need_one_of_them(place, tmp_path):
    lists = [[0, 1, 2]] * 11 + [[]]
    (tmp_path / "real.json").write_text(json.dumps(lists))
    found = evaluate(place / "one", labels=tmp_path / "real.json", quiet=True)
    assert found.samples == 11
    assert found.metrics()["top1"] == 1
    assert set(found.metrics()) == {"top1", "nll", "ece"}
    assert found.run().metrics["top1"].low < 0.8  # Wilson's, since all agree


@pytest.mark.parametrize("device", ["cuda:99", "nowhere"])
def test_device_that_is_not_there_is_refused_with_another(place, device):
    with pytest.raises(ValueError, match=rf"device={device} is not available.*try cpu"):
        evaluate(place / "one", quiet=True, device=device)


def test_runs_that_are_asked_apart_are_named_with_their_times(place, tmp_path, capsys):
    make_run(tmp_path / "large", place / "set", img_size=24)
    evaluate([place / "one", tmp_path / "large", place / "two"], robust=True, limit=1, steps=1, restarts=1)
    told = [line for line in capsys.readouterr().err.splitlines() if "for occlusions" in line]
    assert [line.partition(": ")[0] for line in told] == ["one, two", "large"]


def test_time_of_the_rest_is_told_beforehand():
    assert describe_remaining(6.0, passes=80, back=10).startswith("up to about 11 minutes")  # (80 + 30) * 6 s
    assert describe_remaining(0.6, passes=80, back=10).startswith("up to about 1 minute for")
    assert describe_remaining(0.1, passes=80, back=10).startswith("less than a minute")
    assert "--limit" in describe_remaining(6.0, passes=80, back=10)
