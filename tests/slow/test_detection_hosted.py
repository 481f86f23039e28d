"""Models of Hugging Face as arms of a comparison, and killed and resumed."""

import json
import shutil

import pytest
import torch

import saccade
from saccade.building.build import load_model
from saccade.comparison.run.folder import is_finished
from support.hosted import save_detector, save_segmenter
from support.masks import make_masks
from support.objects import make_objects
from support.trainings import assert_same_end, kill_plan, settings, train_with_kills

pytestmark = pytest.mark.slow
pytest.importorskip("transformers")


def test_a_folder_of_a_configuration_trains_and_its_run_needs_the_folder_no_more(tmp_path):
    data, folder = make_objects(tmp_path / "set", train=6, val=3, side=48), save_detector(tmp_path / "host", "rt_detr")
    run = saccade.train(
        str(data), task="detect", model=str(folder), epochs=1, batch_size=3, img_size=64, out=tmp_path / "run",
        device="cpu", settings={"data.workers": 0}, quiet=True,
    )  # fmt: skip
    shutil.rmtree(folder)
    model, spec = load_model(run.path)
    assert spec.extra["host"]["model_type"] == "rt_detr"
    assert model(torch.zeros(1, 3, 64, 64)).shape[-1] == 6
    told = json.loads((run.path / "summary.json").read_text())
    (found,) = saccade.evaluate(run.path, device="cpu", quiet=True).runs.values()
    assert found.metrics["ap"].value == pytest.approx(told["val_ap"], abs=1e-6)


def test_hosted_detectors_stand_beside_this_packages_own(tmp_path):
    data = make_objects(tmp_path / "set", train=8, val=4, side=48)
    arms = ["base"]
    kinds = ("rt_detr", "d_fine", "rf_detr", "lw_detr", "deformable_detr")
    for kind in kinds:
        arms.append(f"{kind}:=model={save_detector(tmp_path / kind, kind, weights=kind == 'd_fine')}")
    result = saccade.compare(
        str(data), arms=arms, seeds=2, task="detect", model="glnet_nano", epochs=1, batch_size=4, img_size=64,
        out=tmp_path / "compared", device="cpu", settings={"model.head": "atss:width=8,depth=1", "data.workers": 0},
        quiet=True,
    )  # fmt: skip
    runs = [path.parent for path in (tmp_path / "compared" / "runs").rglob("summary.json")]
    assert len(runs) == 2 * len(arms)
    assert all(is_finished(path) for path in runs)
    assert {arm.name for arm in result.arms} == {"base", *kinds}
    assert all(arm.mean is not None for arm in result.arms)


def test_mask2former_stands_beside_this_packages_own_segmenters(tmp_path):
    data = make_masks(tmp_path / "set", train=8, val=4)
    arms = ["base", f"mask2former:=model={save_segmenter(tmp_path / 'host', 'mask2former')}"]
    result = saccade.compare(
        str(data), arms=arms, seeds=2, task="segment", model="glnet_nano", epochs=1, batch_size=4, img_size=64,
        out=tmp_path / "compared", device="cpu", settings={"model.head": "fpn:width=8", "data.workers": 0}, quiet=True,
    )  # fmt: skip
    assert all(arm.mean is not None for arm in result.arms)
    run = next((tmp_path / "compared" / "runs").glob("mask2former-*/*/summary.json")).parent
    shutil.rmtree(tmp_path / "host")
    model, spec = load_model(run)
    assert spec.extra["host"]["model_type"] == "mask2former"
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, len(spec.outputs), 64, 64)


def test_kills_leave_no_trace_in_a_hosted_detector(tmp_path):
    data = make_objects(tmp_path / "set", train=12, val=3, side=48)
    folder = save_detector(tmp_path / "host", "rt_detr")
    values = settings(schedule__epochs=3, augment__mixup=0.0, augment__cutmix=0.0, augment__erase=0.0)
    values |= {"task": "detect", "model.name": str(folder), "data.img_size": 64, "optim.batch_size": 4}
    values |= {"augment.repeats": 1, "augment.crop": "none"}
    values = {name: value for name, value in values.items() if name not in ("model.options", "model.drop_path")}
    assert train_with_kills(tmp_path / "whole", data, values, []) == [0]
    kills = kill_plan(4, 3)
    assert train_with_kills(tmp_path / "killed", data, values, kills) == [-9] * len(kills) + [0]
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
