import re

import numpy as np
import pytest
import timm
import torch
from torch import nn

import saccade
from saccade.explanation.views.words import colour_sentence, compute_influence, join_pieces, word_colour, words_view
from saccade.plugins import SecondOrderHead, attach


class Bag(nn.Module):
    """The mean of embeddings and a linear layer: every word's part of a logit is known."""

    def __init__(self):
        super().__init__()
        self.position_embeddings = nn.Embedding(8, 4)
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embed(input_ids) * mask[..., None]
        return self.head(x.sum(1) / mask.sum(1, keepdim=True))


def bert(kind="BertForSequenceClassification", **options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind.startswith("GPT2"):
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "pad_token_id": 0}
        config = transformers.GPT2Config(vocab_size=50, num_labels=3, **sizes, **options)
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        make = transformers.RobertaConfig if kind.startswith("Roberta") else transformers.BertConfig
        config = make(vocab_size=50, num_labels=3, max_position_embeddings=20, **sizes, **options)
    return getattr(transformers, kind)(config).eval()


class Pieces:
    """A tokenizer of a few word pieces."""

    table = ("[PAD]", "[CLS]", "[SEP]", "un", "##believ", "##able", "film", "a")
    all_special_ids = (0, 1, 2)

    def __call__(self, text, return_tensors):
        assert return_tensors == "pt"
        ids = [1, *([7, 3, 4, 5, 6] if text == "a unbelievable film" else [6]), 2]
        return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}

    def convert_ids_to_tokens(self, ids):
        return [self.table[i] for i in ids]

    def decode(self, ids):
        return "".join(self.table[i].removeprefix("##") for i in ids)


@pytest.mark.parametrize("target", [0, 2])
def test_influence_in_a_bag_of_words_is_each_words_part_of_the_logit(target):
    model = Bag()
    ids = torch.tensor([[3, 1, 4, 1]])
    found = compute_influence(model, ids, target=target)
    want = (model.embed(ids)[0] / 4) @ model.head.weight[target]
    np.testing.assert_allclose(found.scores["both"], want.detach(), rtol=1e-5)
    logit = (model(ids)[0, target] - model.head.bias[target]).item()
    assert found.scores["both"].sum() == pytest.approx(logit, rel=1e-4)


def test_padding_has_no_part():
    ids, mask = torch.tensor([[3, 1, 4, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0]])
    model = Bag()
    inputs = {"input_ids": ids, "attention_mask": mask}
    found = compute_influence(model, inputs, target=1)
    assert found.scores["both"][3:].tolist() == [0, 0]
    np.testing.assert_allclose(found.scores["both"][:3], compute_influence(model, ids[:, :3], target=1).scores["both"])
    view = words_view(model, inputs, words=["x", "y", "z", "PAD", "PAD"], target=1)
    assert [entry["word"] for entry in view.figures[0].numbers["words"]] == ["x", "y", "z"]
    assert "PAD" not in view.figures[0].chart


def test_pieces_of_a_word_are_joined_and_their_influence_summed():
    model = Bag()
    view = words_view(model, "a unbelievable film", tokenizer=Pieces(), target=0)
    tokens = compute_influence(model, Pieces()("a unbelievable film", "pt"), target=0).scores["both"]
    told = view.figures[0].numbers["words"]
    assert [entry["word"] for entry in told] == ["[CLS]", "a", "unbelievable", "film", "[SEP]"]
    assert told[2]["influence"] == pytest.approx(tokens[2:5].sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("tokens", "groups"),
    [
        (["un", "##able", "a"], [[0, 1], [2]]),
        (["The", "Ġun", "able", "Ġa"], [[0], [1, 2], [3]]),
        (["▁The", "▁un", "able"], [[0], [1, 2]]),
        (["<s>", "The", "re", "Ġis", "</s>"], [[0], [1, 2], [3], [4]]),
    ],
)
def test_vocabularies_mark_words_in_their_own_ways(tokens, groups):
    assert join_pieces(tokens, [token.startswith("<") for token in tokens]) == groups


@pytest.mark.parametrize(
    "kind",
    ["BertForSequenceClassification", "RobertaForSequenceClassification", "GPT2ForSequenceClassification"],
)
@pytest.mark.parametrize("second_order", [False, True])
def test_text_classifiers_are_explained_and_left_as_they_were(kind, second_order):
    model = bert(kind)
    if second_order:
        attach(model, SecondOrderHead(num_heads=2, head_dim=4))
    inputs = {
        "input_ids": torch.tensor([[5, 9, 12, 30, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]]),
    }
    with torch.no_grad():
        before = model(**inputs).logits
    model.train()
    view = words_view(model, inputs, words=list("abcdef"))
    assert model.training
    parts = ["words", "words-class", "words-words"] if second_order else ["words"]
    assert [figure.key for figure in view.figures] == parts
    assert view.numbers["target"] == int(before.argmax())
    assert view.figures[0].numbers["score"] == pytest.approx(float(before.max()), rel=1e-4)
    assert any(entry["influence"] != 0 for entry in view.figures[0].numbers["words"])
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, before)


def test_parts_of_a_second_order_head_sum_to_the_whole():
    model = bert()
    attach(model, SecondOrderHead(num_heads=2, head_dim=4))
    found = compute_influence(model, {"input_ids": torch.tensor([[5, 9, 12]])}, target=0)
    np.testing.assert_allclose(found.scores["class"] + found.scores["words"], found.scores["both"], atol=1e-6)


def luminance(colour):
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_words_can_be_read_on_every_colour(sign, strength):
    """The text's colour is set with the background's, so a page's light or dark scheme changes neither."""
    ink = re.search(r"color:(#\w{6});padding", colour_sentence(["a"], [1.0]))[1]
    bright, dark = luminance(word_colour(sign, strength)), luminance(ink)
    assert (bright + 0.05) / (dark + 0.05) > 4.5


def test_sentence_tells_numbers_and_escapes_words():
    html = colour_sentence(["<b>", "x", "y"], [2.0, -4.0, 0.0])
    assert "&lt;b&gt;" in html
    assert re.findall(r'title="([^"]*)"', html) == ["+2", "-4", "+0"]
    assert html.count("underline") == 1
    assert word_colour(-4.0, 1.0) in html
    assert word_colour(2.0, 0.5) in html


def test_what_has_no_words_says_why():
    assert "no token embedding" in words_view(nn.Linear(3, 2), torch.zeros(1, 3, dtype=torch.long)).absent


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="one text at a time"):
        compute_influence(Bag(), torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="needs a tokenizer"):
        words_view(Bag(), "a text")
    with pytest.raises(ValueError, match="got 2 words for 3 tokens"):
        words_view(Bag(), torch.ones(1, 3, dtype=torch.long), words=["a", "b"])


def test_integrated_gradients_sum_to_what_the_score_gains():
    model, ids = bert(), torch.tensor([[1, 7, 9, 11, 2]])
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    embedding = model.get_input_embeddings().weight
    found = compute_influence(model, ids, target=1, method="integrated", steps=200)
    whole = model(ids).logits[0, 1].item()
    kept = embedding.detach().clone()
    with torch.no_grad():
        embedding.zero_()
    start = model(ids).logits[0, 1].item()
    with torch.no_grad():
        embedding.copy_(kept)
    assert abs(whole - start) > 0.01
    assert found.scores["both"].sum() == pytest.approx(whole - start, rel=0.02)
    plain = compute_influence(model, ids, target=1).scores["both"]
    assert np.abs(plain - found.scores["both"]).max() > 1e-3


def test_view_says_which_method_it_shows():
    model, ids = bert(), torch.tensor([[1, 7, 9, 2]])
    attach(model, SecondOrderHead(num_heads=1, head_dim=3))
    view = words_view(model, ids, method="integrated")
    assert view.about.startswith("Integrated gradients")
    assert view.numbers["method"] == "integrated"
    assert [figure.key for figure in view.figures] == ["words", "words-class", "words-words"]
    assert words_view(model, ids).about.startswith("Gradient times input")
    with pytest.raises(ValueError, match="expected one of gradient, integrated"):
        words_view(model, ids, method="magic")


@pytest.mark.parametrize(
    "given", [{"heads": "all"}, {"block": 1}, {"epochs": [1]}, {"estimator": "biased"}, {"data": "run"}]
)
def test_what_is_for_images_is_refused_of_words(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} applies to images only, and this model reads texts"):
        saccade.explain(bert(), [torch.tensor([[1, 2, 3]])], **given)


def test_what_is_for_words_is_refused_of_images():
    with pytest.raises(ValueError, match="method=integrated is for models that read texts"):
        saccade.explain(timm.create_model("resnet10t"), np.zeros((32, 32, 3), np.uint8), method="integrated")
