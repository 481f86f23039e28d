"""`saccade tune` ends within its time for other tasks than classes of images, and what it writes trains."""

import time

import pytest
import yaml

import saccade
from support.masks import make_masks
from support.texts import make_model, write_cola

pytestmark = pytest.mark.slow

SECONDS = 90.0


def tuned(data, tmp_path, **more):
    begun = time.monotonic()
    found = saccade.tune(str(data), budget=SECONDS, out=tmp_path / "tune", device="cpu", quiet=True, **more)
    assert time.monotonic() - begun < SECONDS + 20  # a busy machine is slow to write the page
    assert found.trials >= 3
    assert (tmp_path / "tune" / "report.html").stat().st_size > 1000
    assert yaml.safe_load(found.recipe.read_text())["optim"]["lr"] == found.settings["optim.lr"]
    return found


def test_segmentation(tmp_path):
    data = make_masks(tmp_path / "set", train=24, val=5, size=(28, 26))
    small = {"model.head": "upernet:width=8,aux=8", "data.workers": 0, "engine.threads": 1}
    more = {"task": "segment", "model": "resnet10t", "img_size": 32, "batch_size": 4, "epochs": 4, "settings": small}
    found = tuned(data, tmp_path, **more)
    run = saccade.train(
        str(data), recipe=str(found.recipe), out=tmp_path / "run", quiet=True, device="cpu", epochs=1
    )  # fmt: skip
    assert 0 <= run.score <= 1


def test_texts(tmp_path):
    data = write_cola(tmp_path / "cola", train=120, dev=12)
    model = make_model(tmp_path / "bert")
    found = tuned(data, tmp_path, task="text", model=str(model), epochs=2, settings={"engine.threads": 1})
    assert {"optim.lr", "optim.batch_size"} <= found.settings.keys()
    run = saccade.train(str(data), recipe=str(found.recipe), out=tmp_path / "run", quiet=True, device="cpu", epochs=1)
    assert -1 <= run.score <= 1
