"""Segmenters, detectors, text models and plug-ins are explained by what they have."""

import pytest
import torch
from torch import nn

import saccade
from saccade.explanation.explain import explain
from support.explaining import photo, views_of, vit


def test_segmenter_is_explained_through_its_whole_forward():
    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = vit()
            self.head = nn.Conv2d(16, 3, 1)

        def forward(self, x):
            tokens = self.encoder.forward_features(x)[:, 1:]
            return self.head(tokens.transpose(1, 2).unflatten(2, (4, 4)))

    explanation = explain(Segmenter(), photo())
    assert explanation.samples[0].answer == []
    views = views_of(explanation)
    assert views["attention"].figures[0].layer == "encoder.blocks.0.attn"
    assert views["gradcam"].figures


def test_detector_is_explained_by_its_backbone():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.rpn = vit(), nn.Identity()

        def forward(self, images, targets=None):
            raise AssertionError("boxes were not asked for")

    explanation = explain(Detector(), photo(), views=["attention"])
    assert "backbone of Detector" in explanation.notes[0]
    assert views_of(explanation)["attention"].figures


def test_text_model_is_explained_by_its_words(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    model = transformers.BertForSequenceClassification(config).eval()
    explanation = explain(model, [torch.randint(0, 50, (1, 9)), torch.randint(0, 50, (1, 5))])
    assert [view.key for view in explanation.samples[0].views] == ["words", "density", "scaling"]
    assert explanation.samples[1].views[1].numbers["layers"][0]["keys"] == 5
    assert explanation.save(tmp_path / "out").exists()


def test_it_is_one_of_the_library_s_verbs_to_explain_a_plug_in():
    model = vit()
    saccade.attach(model, saccade.SecondOrderHead(num_classes=4))
    assert len(views_of(explain(model, photo()))["gradcam"].figures) == 3  # both, class token, words


def test_text_model_makes_the_views_asked_for_and_refuses_those_of_images():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, vocab_size=50
    )
    model, ids = transformers.BertForSequenceClassification(config), torch.randint(0, 50, (1, 6))
    (view,) = explain(model, ids, views=["density"], layers=["bert.encoder.layer.1"]).samples[0].views
    assert [row["layer"].startswith("bert.encoder.layer.1") for row in view.numbers["layers"]] == [True]
    with pytest.raises(ValueError, match=r"no view 'gradcam' for texts.*words, density, scaling"):
        explain(model, ids, views=["gradcam"])
    with pytest.raises(ValueError, match="remove it"):
        explain(model, ids, data="run")
    with pytest.raises(TypeError, match="a mapping with input_ids"):
        explain(model, [3])
