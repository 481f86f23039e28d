import json

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import saccade
from saccade.building.build import load_model, parse_plugin, resolve_name
from saccade.runs.run import Run, RunError
from saccade.settings import ConfigError, TrainConfig
from saccade.settings.recipes import list_recipes, read_recipe
from saccade.training.optim import rate_at
from saccade.training.recipes import configure
from support.training import TINY, tiny

pytestmark = pytest.mark.usefixtures("few_answers")

# Nothing is learned: weights stay where they began.
STILL = {
    "optim__lr": 1e-30,
    "optim__weight_decay": 0.0,
    "schedule__warmup_lr": 0.0,
    "schedule__min_lr": 0.0,
    "keep__ema": None,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "first"
    return saccade.train(epochs=2, out=out, quiet=True, settings=TINY)


def weights(run):
    return load_file(run.path / "model.safetensors")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_leaves_what_is_promised(finished):
    names = {path.name for path in finished.path.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "metrics.csv", "model.safetensors", "predictions.safetensors"} <= names
    assert {"summary.json", "bad_samples.json", "state"} <= names
    records = [json.loads(line) for line in (finished.path / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2]
    assert {"train_loss", "val_loss", "val_top1", "lr", "images_per_second"} <= records[0].keys()
    assert not [name for name in names if name.endswith(".part")]


def test_config_yaml_repeats_the_run_exactly(finished, tmp_path):
    settings = yaml.safe_load((finished.path / "config.yaml").read_text())
    recipe = settings.pop("recipe")
    again = saccade.train(recipe=recipe, out=tmp_path / "again", quiet=True, settings=settings)
    assert same(weights(finished), weights(again))
    assert finished.top1 == again.top1


def test_another_seed_gives_another_model(finished, tmp_path):
    other = saccade.train(epochs=2, seed=1, out=tmp_path / "other", quiet=True, settings=TINY)
    assert not same(weights(finished), weights(other))


def test_predictions_are_those_of_the_saved_weights(finished):
    model, shape = load_model(finished.path)
    kept = Run.open(finished.path).predictions()
    images = torch.from_numpy(saccade_val().array()[:50]).permute(0, 3, 1, 2).float() / 255
    mean, std = torch.tensor(shape.mean).view(-1, 1, 1), torch.tensor(shape.std).view(-1, 1, 1)
    with torch.no_grad():
        logits = model((images - mean) / std)
    torch.testing.assert_close(logits, kept["logits"][:50].float(), atol=2e-2, rtol=1e-2)
    assert kept["correct"].double().mean().item() == pytest.approx(finished.top1)
    assert kept["place"].tolist() == list(range(len(saccade_val())))


def saccade_val():
    from saccade.data.open import open_data

    return open_data().val


def test_initial_weights_are_the_same_with_and_without_plug_ins(tmp_path):
    settings = tiny(**STILL)
    base = saccade.train(epochs=1, out=tmp_path / "a", quiet=True, settings=settings)
    other = saccade.train(epochs=1, out=tmp_path / "b", quiet=True, settings=settings, plugins=["squeeze", "drloc"])
    a, b = weights(base), weights(other)
    shared = [name for name in a if name in b and "running" not in name and "batches" not in name]
    assert len(shared) > 20
    assert all(torch.allclose(a[name], b[name]) for name in shared)
    assert len(b) > len(a)  # the squeeze's own; the localizer is no part of the model


def test_a_run_folder_is_never_overwritten_unasked(finished):
    with pytest.raises(RunError, match="--resume"):
        saccade.train(epochs=1, out=finished.path, quiet=True, settings=TINY)
    assert Run.open(finished.path).finished()


def test_a_folder_that_is_no_run_is_not_removed_even_when_asked(tmp_path):
    (tmp_path / "photo.txt").write_text("precious")
    with pytest.raises(RunError, match="not a run"):
        saccade.train(epochs=1, out=tmp_path, overwrite=True, quiet=True, settings=TINY)
    assert (tmp_path / "photo.txt").read_text() == "precious"


def test_resume_of_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"config\.yaml"):
        saccade.train(resume=tmp_path, quiet=True)
    with pytest.raises(RunError, match="does not exist"):
        saccade.train(resume=tmp_path / "nothing", quiet=True)


def test_a_resumed_run_keeps_what_it_is_trained_with(finished):
    with pytest.raises(ConfigError, match=r"schedule\.epochs cannot be changed"):
        saccade.train(resume=finished.path, epochs=9, quiet=True)


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(finished):
    before = weights(finished)
    again = saccade.train(resume=finished.path, quiet=True)
    assert same(before, weights(again))
    assert again.metrics["epoch"] == 2


def test_fine_tuning_starts_from_a_run_and_leaves_another_classifier_out(finished, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (40, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "three.npz", x_train=x[:30], y_train=np.arange(30) % 3, x_test=x[30:], y_test=np.arange(10) % 3)
    settings = tiny(
        model__checkpoint=str(finished.path), optim__lr=1e-30, schedule__warmup_lr=0.0, schedule__min_lr=0.0
    )
    settings |= {"keep.ema": None, "optim.weight_decay": 0.0}
    tuned = saccade.train(str(tmp_path / "three.npz"), epochs=1, out=tmp_path / "r", quiet=True, settings=settings)
    a, b = weights(finished), weights(tuned)
    assert b["head.weight"].shape[0] == 3
    assert torch.allclose(a["stem.conv1.weight"], b["stem.conv1.weight"])


def test_a_linear_probe_changes_the_classifier_alone(finished, tmp_path):
    settings = tiny(model__checkpoint=str(finished.path), model__probe=True, keep__ema=None)
    probed = saccade.train(epochs=1, out=tmp_path / "p", quiet=True, settings=settings)
    a, b = weights(finished), weights(probed)
    changed = {
        name for name in a if not torch.equal(a[name], b[name]) and "running" not in name and "batches" not in name
    }
    assert changed == {"head.weight", "head.bias"}


def test_training_stops_early_when_nothing_gets_better(tmp_path):
    settings = tiny(
        schedule__patience=2, optim__lr=1e-30, schedule__warmup_lr=0.0, schedule__min_lr=0.0, keep__ema=None
    )
    run = saccade.train(epochs=9, out=tmp_path / "r", quiet=True, settings=settings | {"augment.crop": "none"})
    assert run.metrics["epoch"] < 9


def test_class_weights_count_rare_classes_more(tmp_path):
    settings = tiny(loss__class_weights="balanced")
    assert saccade.train(epochs=1, out=tmp_path / "r", quiet=True, settings=settings).metrics["train_loss"] > 0
    with pytest.raises(ConfigError, match="3 numbers, the data has 10 classes"):
        saccade.train(epochs=1, out=tmp_path / "q", quiet=True, settings=tiny(loss__class_weights=[1.0, 2.0, 3.0]))


@pytest.mark.parametrize("name", ["sgd", "lamb", "adan"])
def test_optimizers_of_timm_train(name, tmp_path):
    run = saccade.train(epochs=1, out=tmp_path / "r", quiet=True, settings=tiny(optim__name=name))
    assert np.isfinite(run.metrics["train_loss"])


def test_an_unknown_optimizer_names_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="adamw"):
        saccade.train(epochs=1, out=tmp_path / "r", quiet=True, settings=tiny(optim__name="adamww"))


def test_an_unknown_model_names_the_nearest_and_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="glnet_nano"):
        saccade.train(epochs=1, model="glnet_nanoo", out=tmp_path / "r", quiet=True, settings=TINY)
    assert not (tmp_path / "r").exists()


def test_a_teacher_teaches(finished, tmp_path):
    plugin = f"distill:teacher={finished.path},weight=1.0"
    run = saccade.train(epochs=1, out=tmp_path / "r", quiet=True, settings=TINY, plugins=[plugin])
    assert np.isfinite(run.metrics["train_loss"])
    tokens = saccade.train(epochs=1, out=tmp_path / "t", quiet=True, settings=TINY, plugins=["token_label"])
    assert np.isfinite(tokens.metrics["train_loss"])


@pytest.mark.parametrize(
    ("text", "words"),
    [("drlok", "choose from broadcast"), ("drloc:wait=3", "no option 'wait'"), ("drloc:weight", "option=value")],
)
def test_a_misspelt_plug_in_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_plugin(text)


def test_short_names_of_models_are_resolved():
    assert resolve_name("vit_tiny") == "vit_tiny_patch16_224"
    assert resolve_name("glnet_nano") == "glnet_nano"


def test_the_rate_rises_then_falls():
    schedule = TrainConfig().schedule
    rates = [rate_at(s, steps_per_epoch=10, peak=1.0, schedule=schedule) for s in range(1000)]
    assert rates[0] < 0.05
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 50
    assert rates[-1] == pytest.approx(schedule.min_lr, abs=1e-4)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_fits_the_settings_and_says_how_it_was_run(name):
    from importlib import resources

    config = configure(name, {})
    assert config.recipe == name
    text = (resources.files("saccade.recipes") / f"{name}.yaml").read_text()
    assert all(f"# {word}:" in text for word in ("command", "hardware", "cost", "seeds", "result"))
    assert read_recipe(name)


def test_an_unknown_recipe_lists_those_there_are():
    with pytest.raises(ConfigError, match="small"):
        configure("smal", {})


def test_a_recipe_with_a_misspelt_key_names_the_right_one(tmp_path):
    (tmp_path / "mine.yaml").write_text("optim:\n  weigth_decay: 0.1\n")
    with pytest.raises(ConfigError, match=r"optim\.weight_decay"):
        configure(str(tmp_path / "mine.yaml"), {})


def test_a_run_by_a_recipe_of_ones_own_lies_directly_under_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "short.yaml").write_text("schedule: {epochs: 1}\n")
    run = saccade.train(recipe="mine/short.yaml", settings=tiny(), quiet=True)
    assert run.path.parent.resolve() == tmp_path / "runs"
    assert run.path.name == "glnet_nano-short-seed0"
