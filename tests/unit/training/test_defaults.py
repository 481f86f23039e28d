from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.data.open import open_data
from saccade.data.sides import SideFraming
from saccade.models._builder import OPTIONS_ABOVE_SMALL
from saccade.runs.run import Run
from saccade.settings import ConfigError, DataConfig, TrainConfig, overlay
from saccade.settings.decisions import Decision, decide
from saccade.settings.facts import Facts, MachineFacts, ModelFacts, SetFacts
from saccade.settings.fitting import FOUND
from saccade.settings.sizes import batch_for, options_above_small, side_for, side_of_whole
from saccade.settings.strength import frozen_augmentation, scale_augmentation_to_epochs
from saccade.tasks.detection import Detect
from saccade.tasks.opening import open_samples
from saccade.training.defaults import typical_side
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.train import train
from support.masks import make_masks
from support.objects import make_objects
from support.trainings import TINY, assert_same_end


def folder(root, *, side, count=6, classes=2):
    draws = np.random.default_rng(0)
    for number in range(count):
        file = root / f"class{number % classes}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 255, (side, side + 30, 3), dtype=np.uint8)).save(file)
    return root


@pytest.mark.parametrize(("side", "chosen"), [(20, 32), (40, 32), (70, 64), (100, 96), (160, 96), (900, 96)])
def test_a_model_for_small_images_is_trained_at_their_own_size(tmp_path, side, chosen):
    data = open_data(str(folder(tmp_path, side=side))).train
    assert typical_side(data) == side
    assert side_for(typical_side(data), 32) == chosen
    assert side_for(typical_side(data), 224) == (224 if side > 64 else chosen)


def test_small_images_in_files_are_trained_at_the_size_of_those_in_memory():
    assert side_for(64, 224) == 64
    facts = Facts(data=SetFacts("classify", 900, side=64), model=ModelFacts("resnet18"))
    arrays = replace(facts, data=SetFacts("classify", 900, array=(64, 3)))
    sizes = [decide(TrainConfig(), one, FOUND).data.img_size for one in (facts, arrays)]
    assert sizes == [64, 64]


@pytest.mark.parametrize(
    ("longer", "thinnest", "gpu", "side"),
    [
        (480, 20.0, True, 480),
        (640, 20.0, True, 512),
        (64, None, True, 64),
        (110, 6.0, False, 96),
        (480, 20.0, False, 256),
        (480, 6.0, False, 480),  # 3.2 pixels at 256
        (2048, 8.0, True, 1024),  # 2 pixels at 512
        (2048, 20.0, True, 512),
    ],
)
def test_whole_images_keep_their_size_as_far_as_the_device_and_thin_details_ask(longer, thinnest, gpu, side):
    assert side_of_whole(longer, thinnest, largest=512, gpu=gpu)[0] == side


def test_images_of_a_dense_task_are_measured_by_their_longer_side(tmp_path):
    root = make_masks(tmp_path, train=6, size=(96, 40))
    choice, data = open_samples("segment", DataConfig(path=str(root)))
    config, _ = resolve(configure(None, {"task": "segment"}), choice, data, torch.device("cpu"))
    assert config.data.img_size == 96
    assert config.model.head == "fpn:width=64,inner=64"


@pytest.mark.parametrize(
    ("size", "longest", "gpu", "side"),
    [
        ((420, 300), None, True, 416),  # the longer side fills the square
        ((400, 300), 2048, True, 288),  # the shorter side is resized
        ((300, 400), 2048, True, 288),
        ((640, 480), 1333, False, 256),
        ((2048, 1024), 2048, True, 512),
        ((1024, 256), 512, True, 128),  # no more than the longer side allows
        ((410, 410), 410, True, 410),
    ],
)
def test_the_image_size_is_of_the_shorter_side_where_there_is_a_longest_one(size, longest, gpu, side):
    facts = SetFacts("segment", 900, side=min(size), longer=max(size), longest=longest, largest=512)
    found = decide(TrainConfig(), Facts(data=facts, machine=MachineFacts(gpu=gpu, cores=2)), FOUND).data.img_size
    assert found == side
    if longest is not None:
        canvas = SideFraming(found, longest=longest).canvas(size[1], size[0])
        assert min(canvas) == found
        assert max(canvas) <= longest


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_a_tasks_longest_side_reaches_the_rule(tmp_path, task):
    made = make_masks(tmp_path, size=(160, 96)) if task == "segment" else make_objects(tmp_path, side=160)
    choice, data = open_samples(f"{task}:longest=320", DataConfig(path=str(made)))
    record: list[Decision] = []
    given = configure(None, {"task": f"{task}:longest=320"})
    config, spec = resolve(given, choice, data, torch.device("cpu"), record=record)
    assert config.data.img_size == (96 if task == "segment" else 160)
    assert spec.framing.canvas(96, 160)[0] == config.data.img_size
    (why,) = [one.why for one in record if one.rule == "size-of-whole"]
    assert why.endswith("the shorter side is resized, the longer one to at most 320")


@pytest.mark.parametrize(
    ("recipe", "given", "gpu", "head"),
    [
        (None, {}, False, "mask_rcnn:width=64,hidden=256,sampled=64,proposals=200"),
        (None, {}, True, "mask_rcnn:width=128,hidden=512,sampled=256,proposals=500"),
        (None, {"model.head": "mask_rcnn:anchor=4"}, False, None),
        (None, {"model.head": "atss"}, False, "atss"),
        ("quick", {}, False, "mask_rcnn:width=64,hidden=256,sampled=64,proposals=200"),
        ("quick", {}, True, "mask_rcnn"),
        ("detect_3x", {}, False, None),
    ],
)
def test_a_cpu_gets_a_light_head_unless_one_is_named(recipe, given, gpu, head):
    facts = Facts(machine=MachineFacts(gpu=gpu, cores=2))
    config = configure(recipe, {"task": "detect", **given})
    found = decide(decide(config, facts, Detect.rules), facts, FOUND).model
    assert (found.head, found.cpu_head) == (head or config.model.head, None)  # None: as in the recipe


def test_a_head_laid_over_finished_settings_is_kept_on_a_cpu():
    facts = Facts(machine=MachineFacts(gpu=False, cores=2))
    for values in ({"model.head": "upernet:width=32,aux=0"}, {"model": {"head": "upernet:width=32,aux=0"}}):
        config = overlay(configure(None, {"task": "segment"}), values)
        assert decide(config, facts, FOUND).model.head == "upernet:width=32,aux=0"


@pytest.mark.parametrize(
    ("task", "batch", "rate", "own_rate"), [("segment", 8, 5e-4, 1e-3), ("detect", 2, 2.5e-4, 5e-4)]
)
def test_batches_of_larger_images_keep_their_number_of_pixels(task, batch, rate, own_rate):
    large = SetFacts(task, samples=10_000, side=1024, longer=2048, thinnest=8.0, largest=512)
    facts = Facts(data=large, model=ModelFacts("glnet_nano"), machine=MachineFacts(gpu=True, cores=2))
    for given, want in (({}, (1024, batch, rate)), ({"optim.batch_size": 32}, (1024, 32, own_rate))):
        config = decide(configure(None, {"task": task, **given}), facts, FOUND)
        assert (config.data.img_size, config.optim.batch_size, config.optim.lr) == want


def test_unreadable_images_do_not_count_and_none_at_all_leave_the_usual_size(tmp_path):
    root = folder(tmp_path, side=100)
    files = sorted(root.rglob("*.png"))
    files[0].write_text("no image")
    data = open_data(str(root)).train
    assert typical_side(data) == 100
    for file in files:
        file.write_text("no image")
    assert typical_side(data) is None
    assert side_for(typical_side(data), 32) == 32


def test_larger_images_get_larger_patches_unless_they_are_given():
    more = OPTIONS_ABOVE_SMALL["glnet_nano"]
    assert options_above_small({}, 64, more) == {}
    assert options_above_small({"depths": [1]}, 96, more) == {"depths": [1], "patch": 4}
    assert options_above_small({"patch": 2}, 96, more) == {"patch": 2}
    assert options_above_small({}, 96, {}) == {}


@pytest.mark.parametrize(
    ("images", "batch", "rate"),
    [(50_000, 256, 2e-3), (2560, 256, 2e-3), (2559, 128, 1.41e-3), (180, 16, 5e-4), (9, 16, 5e-4)],
)
def test_small_sets_get_smaller_batches_and_a_lower_rate(images, batch, rate):
    assert batch_for(configure("small", {}), images) == (batch, rate)


def test_few_images_have_a_rate_of_their_own_where_a_family_has_one():
    config = configure("small", {})
    assert batch_for(config, 2560, few_rate=1e-4) == (256, 2e-3)
    assert batch_for(config, 600, few_rate=1e-4) == (32, 3.54e-5)
    assert batch_for(configure("small", {"optim.lr": 2e-3}), 600, few_rate=1e-4) == (256, 2e-3)


def test_what_the_user_asks_for_stays():
    for given in ({"optim.batch_size": 256}, {"optim.lr": 2e-3}):
        assert batch_for(configure("small", given), 100) == (256, 2e-3)
    assert batch_for(configure("small", {"optim.lr": 4e-3, "optim.least_steps": 2}), 256)[0] == 128
    assert batch_for(overlay(TrainConfig(), {"optim.batch_size": 64}), 10)[0] == 64


@pytest.mark.parametrize(
    ("epochs", "operations", "magnitude", "mixed"),
    [(1, 0, 0.0, 0.0), (15, 0, 0.0, 0.0), (24, 1, 1.4, 0.1), (60, 1, 7.0, 0.5), (300, 1, 7.0, 0.5)],
)
def test_short_runs_augment_less(epochs, operations, magnitude, mixed):
    settled = scale_augmentation_to_epochs(configure("small", {}), epochs).augment
    assert (settled.rand_ops, settled.rand_magnitude, settled.mix_prob) == (operations, magnitude, mixed)
    assert settled.full_epochs is None
    assert settled.crop == "pad"


@pytest.mark.parametrize("name", ["rand_ops", "rand_magnitude", "mixup", "cutmix", "mix_prob", "erase", "jitter"])
def test_augmentation_that_the_user_asks_for_stays_however_short_the_run(name):
    config = configure("small", {f"augment.{name}": 1})
    assert scale_augmentation_to_epochs(config, 1) == config
    assert getattr(config.augment, name) == 1


def test_other_recipes_augment_as_they_say():
    for recipe in ("cifar", "quick", "deit", "finetune"):
        config = configure(recipe, {})
        assert scale_augmentation_to_epochs(config, 1) == config


def test_what_was_settled_is_kept_by_a_run_of_another_length():
    short = scale_augmentation_to_epochs(configure("small", {}), 24)
    longer = overlay(configure("small", {}), frozen_augmentation(short))
    assert scale_augmentation_to_epochs(longer, 100).augment == short.augment


def test_a_short_run_says_that_it_augments_less_and_writes_how(tmp_path, capsys):
    data = folder(tmp_path / "photos", side=40, count=24)
    given = {"model.options": TINY, "engine.device": "cpu"}
    run = train(str(data), epochs=2, out=tmp_path / "run", settings=given)
    assert "2 epochs: RandAugment and mixing are off; runs under 60 epochs" in " ".join(capsys.readouterr().err.split())
    settled = Run(run.path).config().augment
    assert (settled.rand_ops, settled.mix_prob) == (0, 0.0)
    whole = train(str(data), epochs=2, out=tmp_path / "whole", settings={**given, "augment.full_epochs": None})
    settled = Run(whole.path).config().augment
    assert (settled.rand_ops, settled.mix_prob) == (1, 0.5)


def test_a_run_on_photographs_says_what_it_chose_and_repeats_it(tmp_path, capsys):
    data = folder(tmp_path / "photos", side=200, count=40)
    tiny = {"model.options": TINY}
    run = train(str(data), epochs=1, out=tmp_path / "run", settings=tiny | {"engine.device": "cpu"})
    told = " ".join(capsys.readouterr().err.split())
    assert "input resolution 96 for images of about 200 pixels" in told
    assert "36 training samples: batch size 16 instead of 256 and learning rate 0.0005" in told
    config = Run(run.path).config()
    assert (config.data.img_size, config.model.options["patch"], config.optim.batch_size) == (96, 4, 16)
    train(resume=run.path, settings=tiny, quiet=True)  # given as the first time: no change
    again = train(recipe=str(run.path / "config.yaml"), out=tmp_path / "again", quiet=True)
    assert_same_end(again.path, run.path)


def test_a_batch_that_was_asked_for_and_is_too_large_is_told_of(tmp_path, capsys):
    data = folder(tmp_path / "photos", side=24, count=40)
    tiny = {"model.options": TINY}
    train(str(data), epochs=1, batch_size=32, out=tmp_path / "run", settings=tiny | {"engine.device": "cpu"})
    assert "36 training samples with batch size 32: only 1 step per epoch" in " ".join(capsys.readouterr().err.split())


def test_a_fine_tuning_recipe_without_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"fine-tunes pretrained weights, but none were given.*--checkpoint"):
        train(str(folder(tmp_path, side=32)), recipe="drloc_finetune", model="vit_tiny", quiet=True)


def test_a_recipe_of_ones_own_may_require_weights_too(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("requires_checkpoint: true\n")
    with pytest.raises(ConfigError, match=r"mine.yaml fine-tunes pretrained weights, but none were given"):
        train(recipe=str(recipe), out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
