"""Detectors learn ten images by heart, die without a trace, and stand on any backbone."""

import json

import pytest
import torch

import saccade
from saccade.deployment.writers import write_predictions
from support.by_heart import HEADS, learn_by_heart
from support.coco import coco_stats
from support.objects import make_objects
from support.trainings import assert_same_end, kill_plan, settings, train_with_kills

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", HEADS)
def test_ten_images_are_learned_by_heart(tmp_path, name):
    found = learn_by_heart(name, tmp_path, device="cuda" if torch.cuda.is_available() else "cpu")
    assert found["val_ap50"] > 0.9
    assert "val_mask_ap50" not in found or found["val_mask_ap50"] > 0.9
    truth = json.loads((tmp_path / "set" / "val.json").read_text())
    files = {str(tmp_path / "set" / one["file_name"]): one["id"] for one in truth["images"]}
    write_predictions(saccade.predict(tmp_path / "run", list(files)), out=tmp_path / "p.json", form="coco")
    written = json.loads((tmp_path / "p.json").read_text())
    ids = {one["id"]: files[one["file_name"]] for one in written["images"]}
    for start, kind, other in (("", "bbox", "segmentation"), ("mask_", "segm", "bbox")):
        if f"val_{start}ap" in found:  # saccade's numbers are those of the predicted file
            said = [one | {"image_id": ids[one["image_id"]]} for one in written["annotations"]]
            stats = coco_stats(truth, [{key: one[key] for key in one if key != other} for one in said], kind)
            assert found[f"val_{start}ap"] == pytest.approx(stats[0], abs=1e-3)


@pytest.mark.parametrize(
    "head",
    [
        "mask_rcnn:width=8,hidden=16,sampled=16,proposals=20",
        "cascade:width=8,hidden=16,sampled=16,proposals=20,convs=1",
        "retinanet:width=8,depth=1",
        "atss:width=8,depth=1",
        "reppoints_v2:width=8,depth=1",
        "sparse_rcnn:width=8,proposals=8,looks=2",
    ],
)
def test_kills_leave_no_trace_in_a_detector(tmp_path, head):
    data = make_objects(tmp_path / "set", train=12, val=3, side=48)
    values = settings(schedule__epochs=3, augment__mixup=0.0, augment__cutmix=0.0, augment__erase=0.0)
    values["augment.crop"] = "none"
    values |= {"task": "detect", "model.head": head, "model.name": "glnet_nano", "data.img_size": 64}
    values |= {"optim.batch_size": 4, "augment.repeats": 1}
    assert train_with_kills(tmp_path / "whole", data, values, []) == [0]
    kills = kill_plan(4, 3)
    assert train_with_kills(tmp_path / "killed", data, values, kills) == [-9] * len(kills) + [0]
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
