"""Fine-tuning: the recipe, layer-wise rates, what is new first, and what stays as it is."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import saccade
import saccade.runs.weights
from saccade.building.build import build_model, build_task, load_model
from saccade.building.freezing import freeze_mode
from saccade.data.spec import InputSpec
from saccade.settings import LossConfig, ModelConfig, OptimConfig
from saccade.tasks.opening import choose_task
from saccade.training.optim import build_optimizer, set_rate
from saccade.training.recipes import configure, default_recipe
from support.trainings import png_folder

NAME = "test_efficientnet"
SPEC = {"outputs": ("a", "b", "c"), "in_chans": 3, "img_size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(5)
    file = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_file(timm.create_model(NAME).state_dict(), file)
    return file


def make_task(weights, **model):
    config = ModelConfig(name=NAME, checkpoint=str(weights), **model)
    spec = InputSpec(**SPEC)
    return build_task(build_model(config, spec, seed=0), choose_task("classify"), config, LossConfig(), spec, seed=0)


def test_trained_weights_choose_the_recipe_unless_the_task_or_the_user_does(weights):
    assert default_recipe({"model.checkpoint": "x"}) == default_recipe({"model.pretrained": True}) == "finetune"
    assert default_recipe({}) == "small"
    assert default_recipe({"task": "segment", "model.pretrained": True}) == "segment_finetune"
    assert configure(None, {"model.checkpoint": str(weights)}).recipe == "finetune"
    assert configure("quick", {"model.checkpoint": str(weights)}).recipe == "quick"


def test_lower_layers_learn_slower_and_what_is_new_at_the_full_rate(weights):
    task = make_task(weights, plugins=["second_order:beside=true"])
    optimizer = build_optimizer(task, OptimConfig(layer_decay=0.5), device=torch.device("cpu"))
    set_rate(optimizer, 1.0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in task.model.named_parameters()}
    assert found["classifier.weight"] == found["second_order.layer.word_fc.weight"] == 1.0
    assert found["conv_stem.weight"] < found["blocks.1.0.conv_exp.weight"] < found["blocks.3.0.conv_pw.weight"] < 1.0
    set_rate(optimizer, 1.0, new_only=True)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    moving = {name for name, p in task.model.named_parameters() if rates[id(p)]}
    assert moving == task.model.new_parameters


def test_a_frozen_share_is_left_out_of_training_and_of_running_means(weights):
    model = make_task(weights, freeze=0.5).model
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert "conv_stem.weight" in frozen
    assert not any(name.startswith(("classifier", "conv_head")) for name in frozen)
    model.train()
    freeze_mode(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.randn(4, 3, 32, 32))
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert not any(name.startswith(("conv_stem", "bn1")) for name in moved)
    assert any(name.startswith("bn2") for name in moved)


def test_what_is_new_may_learn_faster(weights):
    task = make_task(weights)
    optimizer = build_optimizer(task, OptimConfig(layer_decay=0.5, new_scale=10), device=torch.device("cpu"))
    set_rate(optimizer, 0.1)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in task.model.named_parameters()}
    assert found["classifier.weight"] == found["classifier.bias"] == pytest.approx(1.0)
    assert max(rate for name, rate in found.items() if not name.startswith("classifier")) < 0.1


def test_kept_statistics_are_those_of_trained_weights_alone(weights):
    model = make_task(weights).model
    model.new_parameters |= {"bn2.weight", "bn2.bias"}  # as if the file had none of it
    model.train()
    freeze_mode(model, statistics=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.randn(4, 3, 32, 32))
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"bn2.running_mean", "bn2.running_var", "bn2.num_batches_tracked"}
    assert all(p.requires_grad for p in model.parameters())


def test_a_new_classifier_begins_without_preference_and_a_trained_one_as_it_was(weights, tmp_path):
    model = make_task(weights).model
    assert not model.classifier.weight.any()
    assert not model(torch.randn(2, 3, 32, 32)).any()
    file = tmp_path / "same.safetensors"
    own = timm.create_model(NAME, num_classes=3).state_dict()
    save_file(own, file)
    kept = make_task(file).model
    assert not kept.new_parameters
    assert torch.equal(kept.classifier.weight, own["classifier.weight"])


def test_the_recipe_keeps_statistics(weights):
    config = configure(None, {"model.checkpoint": str(weights)})
    assert config.model.keep_statistics
    assert not configure("small", {}).model.keep_statistics


@pytest.mark.parametrize(("setting", "kept"), [("model.probe", True), ("schedule.head_epochs", 0.5)])
def test_training_moves_what_it_should(setting, kept, weights, tmp_path):
    data = png_folder(tmp_path / "set", train=12, val=3)
    settings = {setting: kept, "engine.device": "cpu", "data.workers": 0, "keep.ema": None, "data.mean": [0.5] * 3}
    run = saccade.train(
        str(data),
        model=NAME,
        checkpoint=weights,
        epochs=2,
        batch_size=6,
        img_size=32,
        out=tmp_path / "run",
        settings=settings | {"data.std": [0.5] * 3},
        quiet=True,
    )
    before, after = load_file(weights), load_file(run.path / "model.safetensors")
    same = torch.equal(before["conv_stem.weight"], after["conv_stem.weight"])
    assert same == (setting == "model.probe")
    if setting == "model.probe":
        assert all(torch.equal(before[name], after[name]) for name in after if not name.startswith("classifier"))
    assert json.loads((run.path / "summary.json").read_text())["epochs"] == 2


def test_a_run_is_continued_from_by_its_folder_with_its_model_size_and_scale(weights, tmp_path):
    data = png_folder(tmp_path / "set", train=12, val=3)
    shared = {"epochs": 1, "batch_size": 6, "quiet": True, "device": "cpu", "workers": 0}
    first = saccade.train(str(data), model=NAME, img_size=48, out=tmp_path / "first", **shared)
    second = saccade.train(str(data), checkpoint=first.path, out=tmp_path / "second", **shared)
    one, two = (load_model(run.path)[1] for run in (first, second))
    assert (one.img_size, one.mean, one.std) == (two.img_size, two.mean, two.std)
    config = (second.path / "config.yaml").read_text()
    assert f"name: {NAME}" in config
    assert "recipe: finetune" in config


def test_the_mean_of_two_runs_is_a_model_and_other_classes_have_none(weights, tmp_path):
    files = []
    for seed, outputs in ((0, ("a", "b", "c")), (1, ("a", "b", "c")), (2, ("a", "b", "x"))):
        spec = InputSpec(**{**SPEC, "outputs": outputs})
        model = build_model(ModelConfig(name=NAME), spec, seed=seed)
        files.append(tmp_path / f"{seed}.safetensors")
        saccade.runs.weights.save_model(files[-1], model.state_dict(), ModelConfig(name=NAME), spec)
    path = saccade.average_weights(files[:2], tmp_path / "mean.safetensors")
    one, two, mean = (load_file(file) for file in (*files[:2], path))
    assert torch.allclose(mean["conv_stem.weight"], (one["conv_stem.weight"] + two["conv_stem.weight"]) / 2)
    assert load_model(path)[1].outputs == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"differs from .* in outputs"):
        saccade.average_weights([files[0], files[2]], tmp_path / "other.safetensors")


def test_runs_whose_numbers_are_in_other_units_have_no_mean(tmp_path):
    """A regression keeps the scale of its training targets, which tells what its answers mean."""
    files = []
    for seed, deviation in ((0, 2.0), (1, 2.0), (2, 3.0)):
        spec = InputSpec(**{**SPEC, "outputs": ("age",)}, task="regress", extra={"mean": [1.0], "std": [deviation]})
        files.append(tmp_path / f"{seed}.safetensors")
        model = build_model(ModelConfig(name=NAME), spec, seed=seed)
        saccade.runs.weights.save_model(files[-1], model.state_dict(), ModelConfig(name=NAME), spec)
    assert saccade.average_weights(files[:2], tmp_path / "mean.safetensors").is_file()
    with pytest.raises(ValueError, match=r"differs from .* in extra"):
        saccade.average_weights(files[1:], tmp_path / "other.safetensors")
