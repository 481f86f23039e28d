"""Dense heads follow another order of classes, or start anew and say so."""

import pytest
import torch

from saccade.building.build import build_model
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig
from support.transferring import (
    config_for,
    spec_for,
    started,
    trained,
)

REORDER = torch.tensor([2, 0, 1])
DENSE = [
    ("detect", "retinanet:width=16,depth=1"),
    ("detect", "atss:width=16,depth=1,groups=4"),
    ("detect", "reppoints_v2:width=16,depth=1,groups=4"),
    ("detect", "sparse_rcnn:width=16,proposals=4,looks=1"),
    ("detect", "mask_rcnn:width=16,hidden=16,sampled=8,proposals=8"),
    ("detect", "cascade:width=32,hidden=16,sampled=8,proposals=8,convs=1"),
    ("segment", "fpn:width=16,inner=32"),
    ("segment", "upernet:width=4,aux=4"),
    ("segment", "unet:width=4,aux=3"),
]


def test_every_detector_of_the_registry_is_among_those_that_are_reordered():
    from saccade.tasks.detection.detector import HEADS as DETECTORS

    assert {head.partition(":")[0] for task, head in DENSE if task == "detect"} >= set(DETECTORS)


@pytest.mark.parametrize(("task", "head"), DENSE)
@pytest.mark.parametrize("names", ["abc", "abcd"])
def test_a_dense_head_follows_another_order_of_classes_or_begins_anew_and_says_so(task, head, names, tmp_path):
    order = [*range(1, len(names)), 0]
    file = tmp_path / "model.safetensors"
    config = ModelConfig(name="test_resnet", head=head)
    source = build_model(config, spec_for(task, outputs=names), seed=3).eval()
    save_model(file, source.state_dict(), config, spec_for(task, outputs=names))
    spec = spec_for(task, outputs=[names[place] for place in order])
    config = ModelConfig(name="test_resnet", head=head, checkpoint=str(file))
    model = build_model(config, spec, seed=0).eval()
    said = " ".join(spec.notes)
    if task == "segment":
        x = torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(model(x), source(x)[:, order])
        assert all(
            torch.equal(v, source.state_dict()[key])
            for key, v in model.state_dict().items()
            if key.startswith("decoder.")
        )
        if model.auxiliary is not None:
            assert torch.equal(model.auxiliary[-1].weight, source.auxiliary[-1].weight[order])
            assert torch.equal(model.auxiliary[1].weight, source.auxiliary[1].weight)
        assert "its classifier was reordered" in said
        return
    fresh = build_model(ModelConfig(name="test_resnet", head=head), spec, seed=0)
    assert all(torch.equal(value, fresh.head.state_dict()[key]) for key, value in model.head.state_dict().items())
    assert {name for name, _ in model.named_parameters() if name.startswith("head.")} <= model.new_parameters
    assert "in another order" in said
    assert "not loaded from model.safetensors" in said
    assert "was reordered" not in said


def test_a_dense_head_of_which_a_part_is_left_out_still_follows_the_classes(tmp_path):
    file = tmp_path / "model.safetensors"
    config = ModelConfig(name="test_resnet", head="fpn:width=16,inner=32,aux=8")
    source = build_model(config, spec_for("segment"), seed=3)
    save_model(file, source.state_dict(), config, spec_for("segment"))
    config = ModelConfig(name="test_resnet", head="fpn:width=16,inner=32,aux=4", checkpoint=str(file))
    model = build_model(config, spec_for("segment", outputs="cab"), seed=0)
    assert torch.equal(model.classifier[1].weight, source.classifier[1].weight[REORDER])
    model = build_model(config, spec_for("segment", outputs="xyz"), seed=0)
    assert not torch.equal(model.classifier[1].weight, source.classifier[1].weight)


def test_layers_as_wide_as_there_are_classes_are_not_reordered_with_the_classifier(tmp_path):
    plugin = "second_order:head_dim=4,num_heads=2"
    probe = build_model(config_for("classify", [plugin]), spec_for("classify"), seed=0).second_order.layer
    widths = {m.out_features for m in probe.modules() if hasattr(m, "out_features")} - {3}
    for count in sorted(width for width in widths if width < 200):
        names = [f"class {place:03}" for place in range(count)]
        file, source = trained(tmp_path, "classify", plugin, outputs=names)
        model, _ = started(file, "classify", plugin, outputs=names[::-1])
        x = torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(model(x), source(x).flip(1))


@pytest.mark.parametrize(("other", "said"), [("segment", False), ("detect", False), ("classify", True)])
def test_what_a_dense_task_took_off_is_named_only_where_the_model_has_it(other, said, tmp_path):
    file, _ = trained(tmp_path, "segment", host="test_resnet")
    _, notes = started(file, other, host="test_resnet")
    taken = [note for note in notes if "which removes" in note]
    assert bool(taken) == said
    assert all("fc.weight" in note for note in taken)
