"""Results say in a line what they are, and a notebook shows them as a table or a page."""

import dataclasses

import numpy as np
import pytest
import timm

import saccade
from saccade.training.finish import Trained
from support.training import TINY


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return saccade.train(epochs=1, out=tmp_path_factory.mktemp("shown") / "run", settings=TINY, quiet=True)


def short(thing):
    text = repr(thing)
    assert "\n" not in text
    assert len(text) < 300
    return text


def test_a_plug_in_on_a_model_is_one_line():
    handle = saccade.attach(timm.create_model("vit_tiny_patch16_224", img_size=32), saccade.SqueezeExcite())
    count = sum(p.numel() for p in handle.parameters())
    assert short(handle) == f"<SqueezeExcite on VisionTransformer: {count:,} additional parameters>"


def test_a_finished_training_is_one_line_and_a_table(trained):
    assert isinstance(trained, Trained)
    text = short(trained)
    assert f"{trained.metric} {trained.score:.4g}" in text
    assert "after 1 epoch>" in text
    page = trained._repr_html_()
    assert "<table>" in page
    assert str(trained.path / "report.html") in page
    strange = dataclasses.replace(trained, path=trained.path / "<script>")
    assert "<script>" not in strange._repr_html_()


def test_an_evaluation_is_one_line_and_a_table(trained, tmp_path):
    found = saccade.evaluate(trained.path, limit=20, out=tmp_path / "found", quiet=True)
    assert "<Evaluation on 20 of " in short(found)
    assert f"{found.metrics()[found.primary.name]:.4g}" in repr(found)
    assert found._repr_html_().count("<tr>") == 1 + len(found.specs)


def test_an_explanation_is_one_line_and_a_page_of_its_own(trained):
    image = np.zeros((32, 32, 3), np.uint8)
    shown = saccade.explain(trained.path, [image], views=["gradcam"])
    assert "<Explanation of run: " in short(shown)
    assert shown._repr_html_().startswith("<iframe srcdoc=")
