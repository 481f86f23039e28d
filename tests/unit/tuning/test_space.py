from itertools import product

import pytest

from saccade.building.build import parse_plugin
from saccade.settings import AugmentConfig, ConfigError
from saccade.settings.strength import strength_settings
from saccade.training.recipes import configure, grid_of
from saccade.tuning.space import Axis, candidates, default_axes, read_grid, settings_of


def test_own_space_lies_around_the_recipes_numbers_and_leaves_what_the_user_gave():
    config = configure("small", {})
    names = [axis.name for axis in default_axes(config)]
    assert names == ["optim.lr", "optim.weight_decay", "augment"]
    rates = default_axes(config)[0]
    assert rates.own in rates.values
    assert min(rates.values) < 3e-4 < 4e-3 < max(rates.values)
    assert [axis.name for axis in default_axes(config, ["optim.lr", "augment.mixup"])] == ["optim.weight_decay"]


def test_a_recipe_without_strong_augmentation_has_no_strength_to_seek():
    assert [axis.name for axis in default_axes(configure("quick", {}))] == ["optim.lr", "optim.weight_decay"]
    assert strength_settings(AugmentConfig(), 0.5) == {}


def test_strength_scales_what_a_recipe_has_and_stays_in_range():
    augment = AugmentConfig(rand_ops=2, rand_magnitude=9, mixup=0.8, mix_prob=0.8, erase=0.25)
    assert strength_settings(augment, 0)["augment.rand_ops"] == 0
    assert strength_settings(augment, 0)["augment.mix_prob"] == 0
    strong = strength_settings(augment, 1.5)
    assert strong == {"augment.rand_magnitude": 10.0, "augment.mix_prob": 1.0, "augment.erase": 0.375}
    config = configure("small", {})
    for strength in (0.0, 0.5, 1, 1.5):
        changed = settings_of({"augment": strength, "optim.lr": 1e-3}, config)
        configure("small", changed)  # every one is a setting that can be trained with


def test_the_recipes_own_comes_first_then_every_rate():
    axes = (Axis("optim.lr", (1, 2, 4, 8), 2), Axis("optim.weight_decay", (0.0, 0.1), 0.1))
    found = candidates(axes, 5)
    assert found[0] == {"optim.lr": 2, "optim.weight_decay": 0.1}
    assert {one["optim.lr"] for one in found[:4]} == {1, 2, 4, 8}
    assert all(one["optim.weight_decay"] == 0.1 for one in found[:4])
    assert len({tuple(one.items()) for one in candidates(axes, 100)}) == 8
    assert candidates(axes, 6) == candidates(axes, 6)


@pytest.mark.parametrize(("value", "edge"), [(1, "lowest"), (2, ""), (8, "highest")])
def test_an_edge_is_the_end_of_what_was_tried(value, edge):
    assert Axis("optim.lr", (1, 2, 8), 2).edge(value) == edge


def test_no_augmentation_is_no_edge_and_words_have_none():
    assert Axis("augment", (0.0, 1, 1.5), 1).edge(0.0) == ""
    assert Axis("optim.name", ("adamw", "sgd"), "adamw").edge("sgd") == ""


def test_a_recipes_grid_is_tried_and_training_leaves_it_aside(tmp_path):
    text = """
optim: {lr: 1.0e-3, batch_size: 32}
grid: {lr: [1e-4, 1.0e-3], optim.batch_size: [16, 32]}
variants:
  "*roberta*": {grid: {lr: [2.0e-5]}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    config = configure(str(tmp_path / "mine.yaml"), {})
    assert config.optim.lr == 1e-3
    axes = read_grid(grid_of(config), config, source="mine")
    assert [(axis.name, axis.values) for axis in axes] == [("optim.lr", (1e-4, 1e-3)), ("optim.batch_size", (16, 32))]
    assert [axis.name for axis in read_grid(grid_of(config), config, source="mine", fixed=["optim.lr"])] == [
        "optim.batch_size"
    ]


@pytest.mark.parametrize(
    ("model", "rates", "batches", "dims", "dropped"),
    [
        ("bert-base-uncased", (2e-5, 3e-5), (24, 64, 96), {32, 64, 72}, {0.5, 0.8}),
        ("somebodys-folder", (2e-5, 3e-5), (24, 64, 96), {32, 64, 72}, {0.5, 0.8}),
        ("roberta-base", (1e-5, 2e-5), (16, 32), {32, 64, 72}, {0.5, 0.7}),
        ("spanbert-base-cased", (2e-5,), (32,), {32, 64, 72}, {0.5, 0.7}),
        ("openai-gpt", (6.25e-5,), (32, 64), {64, 80}, {0.5, 0.7}),
    ],
)
def test_the_recipe_of_texts_carries_the_papers_grid(model, rates, batches, dims, dropped):
    config = configure("text", {"model.name": model, "task": "text"})
    axes = {axis.name: axis.values for axis in read_grid(grid_of(config), config, source="text")}
    assert (axes["optim.lr"], axes["optim.batch_size"]) == (rates, batches)
    heads = [parse_plugin(text)[1] for (text,) in axes["model.plugins"]]
    assert {(head["head_dim"], head["drop_rate"]) for head in heads} == set(product(dims, dropped))
    assert {head["num_heads"] for head in heads} == {1}
    kept = read_grid(grid_of(config), config, source="text", fixed=["model.plugins"])
    assert [axis.name for axis in kept] == ["optim.lr", "optim.batch_size"]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ([1, 2], "a mapping of names to lists"),
        ({"lr": 1e-3}, "a list of values"),
        ({"lr": []}, "a list of values"),
        ({"optim.lrr": [1.0]}, "did you mean 'optim.lr'"),
        ({"optim.lr": ["fast"]}, "optim.lr = 'fast'"),
        ({"optim.lr": [-1.0]}, "it must be"),
        ({"augment": [-1]}, "strengths must be 0 or more"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(grid, message):
    with pytest.raises(ConfigError, match=message):
        read_grid(grid, configure("small", {}), source="mine")


def test_the_grid_of_texts_can_be_tried_with_lists_among_its_values():
    config = configure("text", {"model.name": "prajjwal1/bert-tiny", "task": "text"})
    axes = read_grid(grid_of(config), config, source="text")
    found = candidates(axes, 12)
    assert len({repr(one) for one in found}) == 12
    for one in found:
        configure("text", {"task": "text", **settings_of(one, config)})
