"""What a run depends on beside its samples: where a file of it changed, a resumed run says so, or goes on as it was."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import saccade
from saccade.building.build import build_model, build_task
from saccade.comparison.compare import compare
from saccade.data.open import open_data
from saccade.data.spec import InputSpec
from saccade.runs.run import RunError
from saccade.runs.state import StateError
from saccade.runs.weights import save_model
from saccade.settings import LossConfig, ModelConfig
from saccade.tasks.auxiliary.label_maps import LabelMaps, save_label_maps
from saccade.tasks.opening import choose_task
from saccade.training.identity import other_differences, other_inputs
from support.trainings import assert_same_end, png_folder

pytestmark = pytest.mark.usefixtures("few_answers")

SOT = {"depth": 1, "embed_dim": 16, "num_heads": 2, "cov_heads": 2, "cov_dim": 4, "token_embed": "linear"}
SMALL = {"data.train_limit": 32, "data.img_size": 32, "optim.batch_size": 8, "engine.threads": 1, "keep.every_steps": 1}


def write(file, *, name="test_vit", seed=0, **options):
    """Write the weights of a run on the embedded set."""
    spec = InputSpec(open_data("").outputs, 1, 32, [0.3], [0.3])
    config = ModelConfig(name=name, options=options)
    save_model(file, build_model(config, spec, seed=seed).state_dict(), config, spec)
    return file


def stop(run, step):
    """Let a run be as if it had been killed after a step."""
    for state in (run / "state").glob("step-*"):
        if state.name > f"step-{step:09}":
            shutil.rmtree(state)
    for name in ("model.safetensors", "summary.json", "predictions.safetensors", "scores.safetensors"):
        (run / name).unlink()


@pytest.fixture(autouse=True)
def keep_all(monkeypatch):
    from saccade.runs.state import save_state

    monkeypatch.setattr(
        "saccade.training.loop.save_state", lambda *args, keep, **options: save_state(*args, keep=100, **options)
    )


def train(out, settings=None, **given):
    return saccade.train(epochs=1, device="cpu", out=out, settings=SMALL | (settings or {}), quiet=True, **given).path


def test_a_run_keeps_the_options_it_began_with_whatever_its_checkpoint_says_by_now(tmp_path):
    file = write(tmp_path / "first.safetensors", name="sot_7", **SOT)
    whole, again = (train(tmp_path / name, checkpoint=file) for name in ("whole", "again"))
    stop(again, 2)
    write(file, name="sot_7", **SOT, num_iter=3)  # a run of other options took its place: tensors of the same shapes
    saccade.train(resume=again, quiet=True)
    assert "num_iter" not in (again / "config.yaml").read_text()
    assert_same_end(again, whole)


@pytest.mark.parametrize("plugin", ["distill:teacher={}", "token_label:teacher={}+drloc"])
def test_another_teacher_than_the_run_began_with_is_refused(plugin, tmp_path):
    file = write(tmp_path / "teacher.safetensors")
    run = train(tmp_path / "run", model="test_vit", plugins=plugin.format(file).split("+"))
    stop(run, 2)
    write(file, seed=1)
    with pytest.raises(StateError, match=r"has changed: the teacher changed\. Restore it"):
        saccade.train(resume=run, quiet=True)
    write(file)
    saccade.train(resume=run, quiet=True)
    assert load_file(run / "model.safetensors")


def task_of(plugin, spec=None):
    spec = spec or InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3)
    config = ModelConfig(name="test_vit", plugins=plugin)
    model = build_model(config, spec, seed=0)
    return build_task(model, choose_task("classify"), config, LossConfig(), spec, seed=0), spec


def test_label_maps_are_told_apart_by_their_content(tmp_path):
    found = []
    for number in range(2):
        maps = [("x.png", torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(number)).softmax(0))]
        save_label_maps(tmp_path / str(number), maps, classes=["a", "b"])
        found.append(other_inputs(*task_of([f"token_label:maps={tmp_path / str(number)},mix_token=false"])))
    assert other_differences(found[0], found[0]) == []
    assert other_differences(found[0], found[1]) == ["the label maps changed"]
    assert LabelMaps(tmp_path / "0").fingerprint() == LabelMaps(tmp_path / "0").fingerprint()


def test_what_describes_the_answers_is_compared_where_both_say_it(tmp_path):
    spec = InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3, extra={"host": {"config": {"act": "relu"}}})
    before = other_inputs(*task_of([], spec))
    spec.extra["host"]["config"] |= {"act": "gelu", "of a later version": 1}
    assert other_differences(before, other_inputs(*task_of([], spec))) == [
        "the description of its inputs and outputs changed: 'extra.host.config.act'"
    ]
    assert other_differences({}, before) == []  # of a state of an earlier version


@pytest.mark.parametrize("arm", ["distill:teacher={}", pytest.param("model.checkpoint={}", marks=pytest.mark.slow)])
def test_a_comparison_does_not_mix_runs_from_other_files_of_the_same_name(arm, tmp_path):
    file = write(tmp_path / "file.safetensors")
    asked = {"arms": ["base", f"other:={arm.format(file)}"], "model": "test_vit", "epochs": 1, "device": "cpu"}
    asked |= {"out": tmp_path / "c", "settings": SMALL, "quiet": True}
    compare(**asked, seeds=2)
    write(file, seed=1)
    compare(**asked, seeds=2)  # nothing is left to train: what there is is told
    with pytest.raises(RunError, match=r"changed since the comparison .* was started"):
        compare(**asked, seeds=3)
    write(file)
    compare(**asked, seeds=3)


@pytest.mark.parametrize("kind", ["files", "array"])
def test_weights_of_grey_images_make_colour_images_grey_and_say_so(kind, tmp_path, capsys):
    data = png_folder(tmp_path / "png", train=12, val=4)
    if kind == "array":
        rng = np.random.default_rng(0)
        images, labels = rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8), np.arange(24) % 3
        data = tmp_path / "set.npz"
        np.savez(data, x_train=images, y_train=labels, x_test=images[:6], y_test=labels[:6])
    file = write(tmp_path / "grey.safetensors")
    settings = {"optim.batch_size": 4, "engine.threads": 1, "data.workers": 0}
    run = saccade.train(str(data), checkpoint=file, epochs=1, device="cpu", out=tmp_path / "run", settings=settings)
    assert saccade.load_model(run.path)[1].in_chans == 1
    assert "images are converted to grayscale for it" in " ".join(capsys.readouterr().err.split())
