import errno
import os
import resource
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import yaml

from saccade.runs.run import Run, RunError
from saccade.runs.state import save_state, set_aside
from saccade.runs.weights import save_tensors
from saccade.settings import ConfigError, TrainConfig, overlay, read_yaml, to_yaml
from saccade.settings.text import RETIRED
from saccade.support.files import WriteError, write_text
from saccade.training.recipes import configure
from support.images import class_folders


def config_for(path):
    return overlay(TrainConfig(), {"data.path": str(path)})


def everything(root):
    """List a folder with all below it."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def finished_run(path):
    """A folder with everything that any verb leaves in a run."""
    run = Run.create(path, TrainConfig())
    run.append({"epoch": 1, "loss": 0.5})
    places = [save_state(run.states, step, {"w": torch.ones(2)}, {"step": step}) for step in (1, 2)]
    set_aside(places[:1])
    (run.states / ".step-000000003.part").mkdir()
    for name in (
        "model.safetensors",
        "predictions.safetensors",
        "scores.safetensors",
        "summary.json",
        "cost.json",
        "bad_samples.json",
        "bad_pictures.json",
        "report.html",
        ".model.safetensors.part",
        "tensorboard/events.out.tfevents.1.host.2.0",
        "evaluation/evaluation.json",
        "evaluation/evaluation.html",
        "explanation/index.html",
        "explanation/numbers.json",
        "explanation/image-1/attention_blocks_3.png",
        "explanation-2/index.html",
        "export/model.onnx",
        "export/model.int8.onnx",
        "export/model.pt2",
        "export/export.json",
    ):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("x")
    return run


def test_a_run_killed_while_it_wrote_its_settings_can_be_begun_again(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.yaml.part").write_text("seed: 0\nrec")
    run = Run.create(tmp_path / "run", TrainConfig())
    assert run.config() == TrainConfig()
    assert everything(run.path) == ["config.yaml"]


def with_retired(path, name, value):
    """A run of an earlier version, which wrote a setting that there is no more."""
    run = Run.create(path, TrainConfig())
    group, _, last = name.rpartition(".")
    values = read_yaml(run.settings.read_text(), source="")
    values[group][last] = value
    run.settings.write_text(yaml.safe_dump(values))
    return run


@pytest.mark.parametrize("name", RETIRED)
def test_a_run_that_was_written_with_a_retired_setting_opens_without_it(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_retired(tmp_path / "as it was", name, RETIRED[name].default).config() == TrainConfig()
    chosen = with_retired(tmp_path / "chosen", name, 8)
    with pytest.warns(UserWarning, match=f"{name} = 8 is no longer a setting"):
        assert chosen.config() == TrainConfig()
    with pytest.warns(UserWarning, match=f"{name} = 8 is no longer a setting"):
        assert configure(str(chosen.settings), {}).recipe == str(chosen.settings)


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_setting_that_somebody_gives_is_refused_with_what_became_of_it(name):
    with pytest.raises(ConfigError, match=f"{name} is no longer a setting: {RETIRED[name].now}; remove it"):
        overlay(TrainConfig(), {name: 2})


def test_overwrite_replaces_a_run_whole(tmp_path):
    run = finished_run(tmp_path / "run")
    Run.create(run.path, overlay(TrainConfig(), {"seed": 7}), overwrite=True)
    assert everything(run.path) == ["config.yaml"]
    assert run.config().seed == 7


def test_a_run_is_not_replaced_without_being_told(tmp_path):
    run = finished_run(tmp_path / "run")
    before = everything(run.path)
    with pytest.raises(RunError, match="--overwrite"):
        Run.create(run.path, TrainConfig())
    assert everything(run.path) == before


@pytest.mark.parametrize(
    "settings", ["site_name: my homepage\n", "", "- a\n", "a: [1\n", "data: pics\nmodel: vit\noptim: sgd\nseed: 1\n"]
)
def test_overwrite_leaves_a_folder_with_a_config_of_its_own(settings, tmp_path):
    (tmp_path / "project" / "thesis").mkdir(parents=True)
    (tmp_path / "project" / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "project" / "config.yaml").write_text(settings)
    with pytest.raises(RunError, match="is not a run"):
        Run.create(tmp_path / "project", TrainConfig(), overwrite=True)
    assert (tmp_path / "project" / "thesis" / "chapter.tex").read_text() == "years of work"
    assert (tmp_path / "project" / "config.yaml").read_text() == settings


@pytest.mark.parametrize("name", ["notes.txt", "thesis/chapter.tex", "state/mine.txt", "export/readme.md", "empty/"])
def test_overwrite_names_what_no_run_writes_and_removes_nothing(name, tmp_path):
    run = finished_run(tmp_path / "run")
    place = run.path / name
    (place if name.endswith("/") else place.parent).mkdir(exist_ok=True)
    if not name.endswith("/"):
        place.write_text("mine")
    before = everything(run.path)
    with pytest.raises(RunError, match=name.split("/")[0]):
        Run.create(run.path, TrainConfig(), overwrite=True)
    assert everything(run.path) == before


def test_overwrite_removes_a_link_and_not_what_it_points_to(tmp_path):
    run = Run.create(tmp_path / "run", TrainConfig())
    (tmp_path / "large disk").mkdir()
    (tmp_path / "large disk" / "other.txt").write_text("mine")
    run.states.symlink_to(tmp_path / "large disk")
    Run.create(run.path, TrainConfig(), overwrite=True)
    assert everything(run.path) == ["config.yaml"]
    assert (tmp_path / "large disk" / "other.txt").exists()


def test_overwrite_replaces_a_run_whose_settings_are_refused_today(tmp_path):
    run = Run.create(tmp_path / "run", TrainConfig())
    run.settings.write_text(to_yaml(TrainConfig()).replace("patience: null", "patience: 0"))
    with pytest.raises(ConfigError, match="patience"):
        run.config()
    Run.create(run.path, TrainConfig(), overwrite=True)
    assert run.config() == TrainConfig()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("out", "told"), [("pics", "is"), ("pics/runs/one", "lies inside"), (".", "holds"), ("link", "is")]
)
def test_a_run_is_not_written_into_or_around_its_images(out, told, overwrite, tmp_path):
    data = tmp_path / "set" / "pics"
    class_folders(data, {"a": 2, "b": 2})
    shutil.copyfile(Run.create(tmp_path / "other", TrainConfig()).settings, data / "config.yaml")
    (tmp_path / "set" / "link").symlink_to(data)
    before = everything(tmp_path)
    with pytest.raises(RunError, match=f"{told} the dataset, "):
        Run.create(tmp_path / "set" / out, config_for(data), overwrite=overwrite)
    assert everything(tmp_path) == before


def test_a_run_is_not_written_into_its_validation_images(tmp_path):
    data = tmp_path / "val"
    class_folders(data, {"a": 2, "b": 2})
    with pytest.raises(RunError, match="lies inside"):
        Run.create(data / "run", overlay(TrainConfig(), {"data.val": str(data)}))


@pytest.mark.parametrize("out", ["runs/one", "pics-run"])
def test_a_run_beside_its_images_is_written(out, tmp_path, monkeypatch):
    class_folders(tmp_path / "pics", {"a": 2, "b": 2})
    monkeypatch.chdir(tmp_path)
    assert Run.create(out, config_for("pics")).settings.exists()


@pytest.fixture
def full_disk():
    """Let no file grow beyond a few bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_weights_that_find_no_room_leave_the_old_ones_and_say_what_to_do(tmp_path, full_disk):
    file = tmp_path / "model.safetensors"
    save_tensors(file, {"w": torch.zeros(3)})
    before = file.read_bytes()
    with pytest.raises(OSError, match=f"Make room .* saccade train --resume {tmp_path}") as error:
        save_tensors(file, {"w": torch.zeros(10_000)})
    assert isinstance(error.value, WriteError)
    assert str(file) in str(error.value)
    assert file.read_bytes() == before
    assert everything(tmp_path) == ["model.safetensors"]


def test_text_and_metrics_that_find_no_room_name_their_file(tmp_path, full_disk):
    run = Run.create(tmp_path / "run", TrainConfig(recipe=None))
    with pytest.raises(OSError, match=r"summary\.json could not be written"):
        write_text(run.path / "summary.json", "x" * 10_000)
    with pytest.raises(OSError, match=r"metrics\.jsonl could not be written.*--resume"):
        run.append({"epoch": 1, "text": "x" * 10_000})
    assert not [name for name in everything(run.path) if name.endswith(".part")]


def test_the_table_of_metrics_grows_with_them_and_gets_new_columns(tmp_path):
    run = Run.create(tmp_path / "run", TrainConfig(recipe=None))
    for record in ({"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.4}, {"epoch": 3, "val": 1}, {"epoch": 4}):
        run.append(record)
    run.fsync_metrics()
    assert [record["epoch"] for record in run.metrics()] == [1, 2, 3, 4]
    assert run.table_file.read_text().split() == ["epoch,loss,val", "1,0.5,", "2,0.4,", "3,,1", "4,,"]
    run.forget_after(2)
    run.append({"epoch": 3, "loss": 0.3})
    assert run.table_file.read_text().split() == ["epoch,loss", "1,0.5", "2,0.4", "3,0.3"]


def test_weights_are_on_the_disk_before_they_take_their_place(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    save_tensors(tmp_path / "model.safetensors", {"w": torch.zeros(3)})
    assert done == ["fsync", "replace"]


def test_a_failure_of_the_disk_itself_is_told_as_one(tmp_path, monkeypatch):
    def broken(handle):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_text(tmp_path / "a.txt", "x")
    assert everything(tmp_path) == []


def test_damaged_files_of_a_run_are_named(tmp_path):
    run = Run.create(tmp_path / "run", TrainConfig())
    run.predictions_file.write_bytes(b"\xff" * 20)
    with pytest.raises(RunError, match=r"predictions\.safetensors is damaged"):
        run.predictions()
    (run.path / "summary.json").write_text("{")
    with pytest.raises(RunError, match=r"summary\.json is damaged"):
        run.summary()
    run.settings.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"config\.yaml is not text"):
        run.config()


def test_a_place_that_may_not_be_written_is_told(tmp_path, monkeypatch):
    def deny(self, *_args, **_options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", deny)
    with pytest.raises(OSError, match=r"run could not be written: Permission denied\. .*make the folder writable"):
        Run.create(tmp_path / "run", TrainConfig())
