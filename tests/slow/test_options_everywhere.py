"""A run answers with the network that was trained, options and plug-ins and all, whichever command asks it."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import saccade
from saccade.deployment.predictor import open_predictor
from saccade.deployment.serve import _open
from saccade.training import train as training
from support.trainings import png_folder

pytestmark = pytest.mark.slow
SOT = {"depth": 1, "embed_dim": 16, "num_heads": 2, "cov_heads": 2, "cov_dim": 4, "token_embed": "linear"}
VIT = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 8}
RUNS: dict[str, dict[str, Any]] = {
    "sot_iterations": {"model": "sot_7", "options": {**SOT, "num_iter": 3, "num_sv": 2, "alpha": 0.3}},
    "sot_layer_norm": {"model": "sot_7", "options": {**SOT, "normalization": "layer_norm", "centring": "none"}},
    "sot_gcp": {"model": "sot_7", "options": {**SOT, "pooling": "gcp", "normalization": "power", "divisor": "tokens"}},
    "sot_words": {"model": "sot_7", "options": {**SOT, "class_token": "none", "normalization": "epn"}},
    "sot_token": {"model": "sot_7", "options": {**SOT, "pooling": "none"}},
    "glnet": {
        "model": "glnet_nano",
        "options": {
            "dims": [16, 32], "depths": [1, 1], "pattern": ["G", "A"], "num_slots": 4, "num_heads": [2, 2],
            "slots": "learned", "mixer": "local_global", "layer_scale": 0.1, "token_label": True,
        },
    },
    "nommer": {
        "model": "nommer_tiny",
        "img_size": 64,  # from which on its exports are made
        "options": {"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 2, 2], "nomination": "soft",
                    "temperature": 0.5, "global_pool": "avg"},
    },
    "vit_head": {"model": "vit_tiny", "options": VIT, "plugins": ["second_order:num_iter=3,head_dim=4,fusion=concat"]},
    "vit_cb": {"model": "vit_tiny", "options": {**VIT, "init_values": 0.1}, "plugins": ["broadcast:scale=true"]},
    "resnet": {"model": "resnet10t", "options": {"block_args": {"attn_layer": "se"}}},
    "convnext": {"model": "test_convnext", "options": {"conv_mlp": True, "ls_init_value": 0.5}},
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return png_folder(tmp_path_factory.mktemp("data"), train=24, val=6)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_every_command_answers_as_the_model_that_was_trained(run, data, tmp_path, monkeypatch):
    kept: list[Any] = []
    finish = training.finish

    def keep(loop, *args, **options):
        kept.append(loop.task.model.eval())
        return finish(loop, *args, **options)

    monkeypatch.setattr(training, "finish", keep)
    settings = {
        "data.img_size": run.get("img_size", 32),
        "data.workers": 0,
        "optim.batch_size": 8,
        "engine.threads": 1,
        "optim.lr": 0.01,
    }
    given: dict[str, Any] = {"model": run["model"], "plugins": run.get("plugins", ()), "epochs": 2, "device": "cpu"}
    settings |= {"model.options": run["options"], "keep.ema": None}  # the model itself is the result
    path = saccade.train(str(data), **given, settings=settings, out=tmp_path / "run", quiet=True).path
    (model,) = kept
    files = sorted((data / "val").rglob("*.png"))
    predictor = open_predictor(path)
    framed = torch.stack([predictor.framing(np.asarray(Image.open(file))) for file in files])
    with torch.no_grad():
        want = model(predictor.normalize(framed)).softmax(1).numpy()

    np.testing.assert_allclose(predictor.rows(framed), want, atol=1e-6)
    served, explainer = _open(path, device="cpu", trust=False)
    np.testing.assert_allclose(served.rows(framed), want, atol=1e-6)
    assert explainer is not None
    measured = saccade.evaluate(path, quiet=True).metrics()
    labels = torch.tensor([int(file.parent.name[-1]) for file in files])
    assert measured["nll"] == pytest.approx(-np.log(want[np.arange(len(files)), labels]).mean(), rel=1e-5)
    explained = saccade.explain(path, [str(file) for file in files[:2]], views=["gradcam"])
    for sample, row in zip(explained.samples, want, strict=False):
        assert sorted(value for _, value in sample.answer) == pytest.approx(sorted(row), rel=1e-4)
    done = saccade.export(path, limit=4)
    np.testing.assert_allclose(open_predictor(done.files[0].path).rows(framed), want, atol=2e-5)
    again = {key: value for key, value in settings.items() if key != "model.options"}
    tuned = saccade.train(str(data), checkpoint=path, plugins=run.get("plugins", ()), epochs=1, settings=again,
                          device="cpu", out=tmp_path / "tuned", quiet=True)  # fmt: skip
    assert repr(saccade.load_model(tuned.path)[0]) == repr(saccade.load_model(path)[0])
