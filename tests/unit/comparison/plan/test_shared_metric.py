"""Arms that do not measure what the reference is judged by are refused before anything is trained."""

import pytest

from saccade.comparison.compare import plan_comparison
from saccade.comparison.plan.request import Request, resolve_metric
from saccade.tasks import MetricSpec
from support.objects import make_objects
from support.training import TINY_MODEL

MASKS = "model.head='mask_rcnn:width=16,hidden=16,proposals=8,sampled=8'"
BOXES = "boxes:=model.head='retinanet:width=16,depth=1'"


def test_a_detector_of_boxes_is_compared_with_one_of_masks_by_boxes_alone(tmp_path):
    values = {"model.options": TINY_MODEL, "engine.device": "cpu", "data.workers": 0, "optim.batch_size": 4}
    values |= {"data.img_size": 32, "schedule.epochs": 1}
    how = {"task": "detect", "arms": [f"base:={MASKS}", BOXES], "seeds": 2, "settings": values, "out": tmp_path / "out"}
    data = str(make_objects(tmp_path / "set", train=4, val=2))
    with pytest.raises(ValueError, match=r"boxes does not measure mask_ap.*--metric: .*ap50"):
        plan_comparison(data, **how)
    assert not (tmp_path / "out").exists()
    plan_comparison(data, metric="ap", **how)


def test_what_not_all_arms_measure_judges_no_run():
    boxes = [MetricSpec(name, name, share=True) for name in ("ap", "ap50")]
    masks = [*boxes, MetricSpec("mask_ap", "mask_ap", share=True)]
    request = Request(arms=["base", "boxes:=lr=1e-3"], metric="ap")
    assert resolve_metric(request, masks, "mask_ap", {"base": masks, "boxes": boxes}).primary == "ap"
    assert resolve_metric(request, masks, "mask_ap", {"base": masks, "boxes": masks}).primary == "mask_ap"
