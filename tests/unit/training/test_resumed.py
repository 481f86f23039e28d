"""What a resumed run refuses: other images, other settings, and company."""

import json
import shutil
import time
import warnings

import pytest
from safetensors.torch import load_file

from saccade.runs.run import Run, RunError
from saccade.runs.state import StateError
from saccade.settings import ConfigError
from saccade.training.identity import differences
from saccade.training.lifecycle import run_lock
from saccade.training.parallel import Alone
from saccade.training.train import train
from support.fresh import start
from support.trainings import TINY, assert_same_end, png_folder, settings


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Images, and a run on them with a state at every second step."""
    place = tmp_path_factory.mktemp("whole")
    data = png_folder(place / "pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saccade.training.loop.save_state", keeping_all)
        train(str(data), out=place / "run", settings=settings(), quiet=True)
    return place


@pytest.fixture
def data(whole, tmp_path):
    return shutil.copytree(whole / "pictures", tmp_path / "pictures")


@pytest.fixture
def stopped(whole, data, tmp_path):
    """The run as if it had been killed after its second step, beside the whole one."""
    shutil.copytree(whole / "run", tmp_path / "run")
    run = shutil.copytree(whole / "run", tmp_path / "again")
    for state in (run / "state").glob("step-*"):
        if state.name > "step-000000002":
            shutil.rmtree(state)
    for name in ("model.safetensors", "summary.json", "predictions.safetensors"):
        (run / name).unlink()
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(whole / "pictures"), str(data)))
    return run


def keeping_all(*args, keep, **options):
    from saccade.runs.state import save_state

    return save_state(*args, keep=100, **options)


def test_images_that_moved_are_the_same(stopped, data, tmp_path):
    data.rename(tmp_path / "elsewhere")
    train(resume=stopped, settings={"data.path": str(tmp_path / "elsewhere")}, quiet=True)
    assert_same_end(stopped, stopped.with_name("run"))


def test_a_renamed_class_is_refused(stopped, data):
    for split in ("train", "val"):
        (data / split / "class2").rename(data / split / "a")
    with pytest.raises(StateError, match=r"the classes 'class2' were removed; the classes 'a' were added"):
        train(resume=stopped, quiet=True)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_new_image_is_refused(stopped, data, split):
    file = next((data / split / "class1").iterdir())
    shutil.copy(file, file.with_name("new.png"))
    role = {"train": "training", "val": "validation"}[split]
    with pytest.raises(StateError, match=rf"the number of {role} samples changed from \d+ to \d+"):
        train(resume=stopped, quiet=True)


def test_another_image_in_the_place_of_one_is_refused(stopped, data):
    file = next((data / "train" / "class1").iterdir())
    file.rename(file.with_name("new.png"))
    with pytest.raises(StateError, match="the names, labels or contents of the 50 training samples changed"):
        train(resume=stopped, quiet=True)


def test_classes_in_another_order_and_epochs_of_other_lengths_are_told():
    begun = {"classes": ["a", "b"], "training": [4, "x"], "validation": [2, "y"], "steps": 3}
    assert differences(begun, dict(begun)) == []
    assert differences(begun, begun | {"classes": ["b", "a"]}) == ["the classes are in a different order"]
    assert differences(begun, begun | {"steps": 5}) == ["the number of steps per epoch changed from 3 to 5"]


def test_a_stopped_early_run_ends_the_same_when_it_is_resumed_at_its_end(data, tmp_path):
    patient = settings(schedule__patience=1, schedule__epochs=6, optim__lr=1e-9, keep__every_steps=None)
    run = train(str(data), out=tmp_path / "run", settings=patient, quiet=True).path
    assert Run(run).summary()["epochs"] < 6
    shutil.copytree(run, again := tmp_path / "again")
    for name in ("model.safetensors", "summary.json"):
        (again / name).unlink()
    train(resume=again, quiet=True)
    assert_same_end(again, run)
    train(resume=again, quiet=True)  # and of a finished run nothing changes
    assert_same_end(again, run)


def test_a_finished_run_says_that_it_is(stopped, capsys):
    train(resume=stopped)
    assert "resuming" in " ".join(capsys.readouterr().err.split())
    train(resume=stopped)
    assert "is already finished (step 9)" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "value"),
    [("keep.ema", None), ("optim.lr_batch", 128), ("schedule.epochs", 9), ("model.options.dims", [16, 16])],
)
def test_settings_that_make_another_run_are_refused(stopped, name, value):
    with pytest.raises(ConfigError, match=f"{name.removesuffix('.dims')} cannot be changed in a resumed run"):
        train(resume=stopped, settings={name: value}, quiet=True)


def test_settings_given_as_they_are_change_nothing(stopped):
    same = {"model.options.dims": tuple(TINY["dims"]), "optim.batch_size": 16, "augment.mixup": 0.2}
    train(model="glnet_nano", resume=stopped, settings=same, quiet=True)
    assert_same_end(stopped, stopped.with_name("run"))


def test_a_changed_setting_holds_from_there_on(stopped):
    train(resume=stopped, settings={"optim.lr": 0.5, "keep.states": 7}, quiet=True)
    config = Run(stopped).config()
    assert (config.optim.lr, config.keep.states) == (0.5, 7)


def test_a_run_may_go_on_in_another_precision(stopped):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of float16 on a CPU
        train(resume=stopped, settings={"engine.precision": "float16"}, quiet=True)
    assert Run(stopped).finished()


def test_another_folder_for_a_run_that_goes_on_is_refused(stopped, tmp_path):
    with pytest.raises(ConfigError, match="a resumed run stays in its folder"):
        train(resume=stopped, out=tmp_path / "other", quiet=True)


def hold(run):
    with run_lock(Run(run), Alone()):
        print("held", flush=True)
        time.sleep(600)


def test_a_run_that_another_process_trains_is_refused(stopped, data, tmp_path):
    other = start(hold, stopped, log=tmp_path / "held.txt")
    try:
        while other.is_alive() and "held" not in (tmp_path / "held.txt").read_text():
            time.sleep(0.01)
        with pytest.raises(RunError, match=f"is being trained by another process \\({other.pid}\\)"):
            train(resume=stopped, quiet=True)
        with pytest.raises(RunError, match=f"is being trained by another process \\({other.pid}\\)"):
            train(str(data), out=stopped, overwrite=True, settings=settings(), quiet=True)
    finally:
        other.kill()
        other.join()
    train(resume=stopped, quiet=True)
    assert_same_end(stopped, stopped.with_name("run"))


def test_only_what_this_torchrun_began_is_gone_on_with_after_a_restart(stopped, data, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(RunError, match="exists and is not empty"):
        train(str(data), out=stopped, settings=settings(), quiet=True)
    begun = stopped.with_name("begun")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    train(str(data), out=begun, settings=settings(), quiet=True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setattr("os.getppid", lambda: -1)
    with pytest.raises(RunError, match="exists and is not empty"):
        train(str(data), out=begun, settings=settings(), quiet=True)
    monkeypatch.undo()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train(str(data), out=begun, settings=settings(), quiet=True)
    assert_same_end(begun, stopped.with_name("run"))


def test_a_restart_takes_settings_that_the_run_has_turned_into_others(data, tmp_path, monkeypatch):
    """A length in steps is one in epochs in the run's own settings."""
    given = {name: value for name, value in settings().items() if name != "schedule.epochs"} | {"schedule.steps": 3}
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    begun = train(str(data), out=tmp_path / "run", settings=given, quiet=True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(str(data), out=tmp_path / "run", settings=given, quiet=True).score == begun.score


def test_a_model_is_given_by_its_name_and_one_plugin_may_be_a_word(data, tmp_path):
    import timm

    with pytest.raises(ConfigError, match="give the name of a saccade or timm model"):
        train(str(data), model=timm.create_model("resnet10t"), quiet=True)
    options = {"embed_dim": 24, "depth": 1, "num_heads": 2, "patch_size": 8}
    small = settings(schedule__epochs=1, model__options=options)
    run = train(str(data), model="vit_tiny", plugins="broadcast", out=tmp_path / "run", settings=small, quiet=True)
    assert Run(run.path).config().model.plugins == ["broadcast"]
    assert load_file(run.path / "model.safetensors")
    assert json.loads((run.path / "summary.json").read_text())["epochs"] == 1
