import numpy as np
import pytest

import saccade
from saccade.evaluation.opening import EvaluationError
from saccade.evaluation.robust import PERTURBATIONS, perturbations
from support.masks import make_masks

HEAD = "fpn:width=8,inner=32"


def test_noise_is_drawn_five_times_and_blur_once():
    found = perturbations()
    assert len(found) == 3 * 5 + 2
    grey = np.full((32, 32, 3), 100, np.uint8)
    noisy = {one.key: one.change(grey, rng_key=7) for one in found}
    assert not np.array_equal(noisy["noise.gaussian_5.0"], noisy["noise.gaussian_5.1"])
    assert np.array_equal(noisy["noise.gaussian_5.0"], found[5].change(grey, rng_key=7))
    assert abs(noisy["noise.gaussian_10.0"].astype(float).std() - 10) < 1
    assert abs(noisy["noise.shot.0"].astype(float).std() - 10) < 1  # the root of 100 photons
    assert (noisy["noise.blur_2.0"] == 100).all()


def test_segmenter_is_evaluated_under_noise_and_what_moves_pixels_is_left_out(tmp_path, monkeypatch):
    from saccade.evaluation import evaluate, inference, robust

    few = [one for one in robust.corruptions(3) if one.key in ("corruption.fog.1", "corruption.elastic.1")]
    for module in (inference, evaluate):
        monkeypatch.setattr(module, "corruptions", lambda _: few)
        monkeypatch.setattr(module, "occlusions", lambda side: robust.occlusions(side)[-1:])  # a shuffle
    data = make_masks(tmp_path / "set", train=4, val=2)
    settings = {"model.head": HEAD, "keep.ema": None, "data.workers": 0}
    run = saccade.train(
        str(data), task="segment", model="resnet10t", epochs=1, batch_size=2, img_size=40,
        out=tmp_path / "run", device="cpu", settings=settings, quiet=True,
    )  # fmt: skip
    result = saccade.evaluate(run.path, robust=True, resamples=100, out=tmp_path / "found", quiet=True)
    flipped = saccade.evaluate(run.path, task="segment:flip=true", resamples=100, quiet=True)
    assert "task options: segment:flip=true" in flipped.notes
    assert flipped.run().metrics["loss"].value != result.run().metrics["loss"].value
    with pytest.raises(EvaluationError, match="trained for the task segment"):
        saccade.evaluate(run.path, task="classify", quiet=True)
    metrics = result.run().metrics
    assert metrics["miou"].value == run.score
    for one in PERTURBATIONS:
        parts = [metrics[f"noise.{one.name}.{n}"].value for n in range(one.repeats)]
        assert np.isclose(metrics[f"noise.{one.name}"].value, np.mean(parts))
    assert "corruption.fog.1" in metrics
    assert not any("shuffle" in name or "elastic" in name for name in metrics)
    assert sum("over 5 draws" in note for note in result.notes) == 3
    assert "Noise and blur" in (tmp_path / "found" / "evaluation.html").read_text()
    assert metrics["iou_1"].low <= metrics["iou_1"].value <= metrics["iou_1"].high
