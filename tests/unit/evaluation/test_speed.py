import pytest
import torch
from torch import nn

from saccade.evaluation.speed import Setting, Timing, as_markdown, peak_memory, race


def test_race_times_every_model_in_order():
    setting = Setting(batch_size=1, img_size=32, rounds=2, seconds=0.01)
    timings = race(["resnet18", "vit_tiny_patch16_224"], setting)
    assert list(timings) == ["resnet18", "vit_tiny_patch16_224"]
    assert all(t.images_per_second > 0 and t.peak_mib > 0 for t in timings.values())


def test_training_needs_more_memory_than_inference():
    shared = {"batch_size": 2, "img_size": 64, "rounds": 1, "seconds": 0.01}
    training = race(["resnet18"], Setting(mode="training", **shared))["resnet18"]
    inference = race(["resnet18"], Setting(mode="inference", **shared))["resnet18"]
    assert training.peak_mib > 2 * inference.peak_mib


def test_peak_memory_counts_tensors_alive_together():
    layer = nn.Linear(1, 1)

    def step():
        a = torch.zeros(2**18)  # 1 MiB
        b = a + 1
        del a
        c = b + 1
        del b, c
        layer(torch.zeros(1))

    assert peak_memory(step, "cpu") == pytest.approx(2, abs=0.1)


def test_ratios_are_against_the_last_model():
    table = as_markdown([(Setting(), {"ours": Timing(30.0, 0.1, 50.0), "peer": Timing(20.0, 0.1, 100.0)})])
    head, _, ours, peer = table.splitlines()
    assert "| peak MiB, without weights |" in head
    assert "| ours | 30 | 10% | 1.50x | 50 | 0.50x |" in ours
    assert "| peer | 20 | 10% | 1.00x | 100 | 1.00x |" in peer


@pytest.mark.parametrize(("field", "value"), [("mode", "sleeping"), ("precision", "int4")])
def test_unknown_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} '{value}': expected one of"):
        race(["resnet18"], Setting(**{field: value}))
