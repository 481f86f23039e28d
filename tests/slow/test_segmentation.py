"""A segmenter learns ten images by heart, dies without a trace, and is exported for any size."""

import pytest

import saccade
from saccade.runs.run import Run
from saccade.settings.recipes import list_recipes
from support.masks import make_masks
from support.trainings import assert_same_end, kill_plan, settings, train_with_kills

pytestmark = pytest.mark.slow


def test_ten_images_are_learned_by_heart(tmp_path):
    data = make_masks(tmp_path / "set", train=10, val=1, size=(64, 64))
    for kind in ("images", "masks"):  # validated on what was learned
        (data / kind / "val" / "0.png").unlink()
        for file in (data / kind / "train").iterdir():
            (data / kind / "val" / file.name).write_bytes(file.read_bytes())
    more = {"model.head": "fpn:width=32,inner=32", "augment.flip": 0.0, "augment.jitter": 0.0, "keep.ema": None}
    more |= {"augment.ratio": [1.0, 1.0], "keep.evaluate_every": 20, "data.workers": 0, "model.drop_path": 0.0}
    run = saccade.train(
        str(data), task="segment:scale=[1,1]", model="resnet10t", epochs=100, batch_size=5, lr=2e-3, img_size=64,
        out=tmp_path / "run", device="cpu", settings=more, quiet=True,
    )  # fmt: skip
    assert run.score > 0.95


def test_kills_leave_no_trace_in_a_segmenter(tmp_path):
    data = make_masks(tmp_path / "set", train=48, val=5, size=(28, 26))
    values = settings(schedule__epochs=4, augment__mixup=0.0, augment__cutmix=0.0, augment__erase=0.0)
    values["augment.crop"] = "none"
    values |= {"task": "segment", "model.head": "upernet:width=8,aux=8", "model.name": "glnet_nano"}
    assert train_with_kills(tmp_path / "whole", data, values, []) == [0]
    kills = kill_plan(6, 3)
    assert train_with_kills(tmp_path / "killed", data, values, kills) == [-9] * len(kills) + [0]
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


STAGES = ["tf_efficientnet_lite0", "glnet_nano", "convnext_atto", "pvt_v2_b0", "swin_tiny_patch4_window7_224"]
COLUMNS = ["vit_tiny_patch16_224", "t2t_vit_7", "sot_7"]


@pytest.mark.parametrize("name", STAGES + COLUMNS)
def test_exported_segmenter_takes_any_size(tmp_path, name):
    data = make_masks(tmp_path / "set", train=4, val=3)
    more = {"model.head": "upernet:width=8,aux=8", "data.workers": 0}
    run = saccade.train(
        str(data), task="segment", model=name, epochs=1, batch_size=2, img_size=80,
        out=tmp_path / "run", device="cpu", settings=more, quiet=True,
    )  # fmt: skip
    found = saccade.export(run.path)
    assert found.bundle.raw
    assert not found.notes
    assert len(found.files[0].parity.sizes) == 3
    assert found.files[0].parity.difference < 1e-4
    assert found.files[0].score == pytest.approx(found.score, abs=1e-6)
    answers = list(saccade.predict(found.files[0].path, data / "images" / "val"))
    assert answers[0].answer.mask.shape == (32, 40)


@pytest.mark.parametrize("recipe", [name for name in list_recipes() if name.startswith("segment")])
def test_recipe_makes_three_steps(tmp_path, recipe):
    data = make_masks(tmp_path / "set", train=6, val=1)
    more = {"data.workers": 0, "data.img_size": 64, "optim.batch_size": 2}
    more |= {"schedule.epochs": 1} if recipe == "segment" else {"schedule.steps": 3, "schedule.warmup_steps": 1}
    run = saccade.train(str(data), recipe=recipe, out=tmp_path / "run", device="cpu", settings=more, quiet=True)
    assert Run(run.path).summary()["steps"] == 3
    assert 0 <= run.score <= 1
