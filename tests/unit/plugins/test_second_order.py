"""SoT's head on hosts that were not built with it; what every plug-in owes every host is in tests/contract."""

import pytest
import timm
import torch
import transformers
from torch import nn

import saccade
from saccade.layers.second_order import SecondOrder
from saccade.plugins import HostError, attach
from saccade.plugins.second_order import SecondOrderHead

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}
HEAD = {"num_heads": 2, "head_dim": 3}


def vit(**kwargs):
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**size, **kwargs}).eval()


def gpt():
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=50, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2ForSequenceClassification(config).eval()


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **SMALL)).eval()


def padded_words():
    ids, mask = torch.randint(3, 50, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    ids[1, 4:], mask[1, 4:] = 0, 0
    return ids, mask


@torch.no_grad()
def test_logits_are_the_heads_on_the_hosts_tokens():
    model, x = vit(), torch.randn(2, 3, 32, 32)
    tokens = model.forward_features(x)
    attach(model, SecondOrderHead(**HEAD))
    head = model.get_classifier()
    assert isinstance(head, SecondOrder)
    torch.testing.assert_close(model(x), head(tokens))
    torch.testing.assert_close(model(x), head.class_fc(tokens[:, 0]) + head.word_fc(head.pool(tokens[:, 1:])))


@torch.no_grad()
def test_distillation_token_is_no_word():
    model = timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5
    ).eval()
    tokens = model.forward_features(torch.randn(2, 3, 32, 32))
    attach(model, SecondOrderHead(**HEAD))
    logits = model.forward_head(tokens)
    changed = tokens.clone()
    changed[:, 1] += 1  # the distillation token
    torch.testing.assert_close(model.forward_head(changed), logits)


@torch.no_grad()
def test_head_replaces_the_pooling_of_a_host_without_class_token():
    model = timm.create_model(
        *("swin_tiny_patch4_window7_224",),
        **{"img_size": 32, "patch_size": 2, "embed_dim": 8, "depths": (1, 2), "num_heads": (1, 2), "window_size": 4},
        num_classes=5,
    ).eval()
    x = torch.randn(2, 3, 32, 32)
    tokens = model.forward_features(x).flatten(1, 2)
    attach(model, SecondOrderHead(**HEAD))
    head = model.get_classifier()
    assert head.class_fc is None
    torch.testing.assert_close(model(x), head.word_fc(head.pool(tokens)))


@torch.no_grad()
def test_words_of_pit_are_read_though_its_own_head_does_not_read_them():
    sizes = {"patch_size": 8, "stride": 4, "base_dims": [8, 8], "depth": [1, 2], "heads": [2, 4], "mlp_ratio": 2}
    model = timm.create_model("pit_ti_224", num_classes=5, img_size=32, **sizes).eval()
    x = torch.randn(2, 3, 32, 32)
    prefix, (words,) = model.forward_intermediates(x, indices=1)
    attach(model, SecondOrderHead(**HEAD))
    head = model.get_classifier()
    words = model.norm(words.flatten(2).mT)
    torch.testing.assert_close(model(x), head.class_fc(prefix[:, 0]) + head.word_fc(head.pool(words)))


@pytest.mark.parametrize("build", [bert, gpt])
@torch.no_grad()
def test_padding_of_a_text_changes_nothing(build):
    model = build()
    attach(model, SecondOrderHead(**HEAD))
    ids, mask = padded_words()
    logits = model(input_ids=ids, attention_mask=mask).logits
    alone = model(input_ids=ids[1:, :4], attention_mask=mask[1:, :4]).logits
    torch.testing.assert_close(logits[1:], alone)


@torch.no_grad()
def test_class_token_of_gpt_is_the_last_that_counts():
    model = gpt()
    attach(model, SecondOrderHead(**HEAD))
    ids, mask = padded_words()
    tokens = model.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
    head = model.score.layer
    want = head.class_fc(tokens[1, 3]) + head.word_fc(head.pool(tokens[1:, :3]))[0]
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits[1], want)


@torch.no_grad()
def test_class_token_of_bert_is_the_first():
    model = bert()
    attach(model, SecondOrderHead(**HEAD))
    ids, mask = padded_words()
    tokens = model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
    head = model.classifier.layer
    want = head.class_fc(tokens[1, 0]) + head.word_fc(head.pool(tokens[1:, 1:4]))[0]
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits[1], want)


@pytest.mark.parametrize("fusion", ["sum", "concat", "aggr_all", "late"])
@pytest.mark.parametrize("pooling", ["mgcrp", "gcp", "gap"])
def test_every_fusion_and_pooling_trains_all_parameters(fusion, pooling):
    model = vit()
    attach(model, SecondOrderHead(7, fusion=fusion, pooling=pooling, **HEAD))
    model.train()
    logits = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 7)
    logits.square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


@torch.no_grad()
def test_timm_methods_speak_of_the_new_head_and_of_the_old_one_again():
    model, x = vit(), torch.randn(2, 3, 32, 32)
    old = model.get_classifier()
    handle = attach(model, SecondOrderHead(7, **HEAD))
    assert model.num_classes == 7
    assert model.forward_head(model.forward_features(x), pre_logits=True).shape == (2, 24 + 2 * 3 * 3)
    model.reset_classifier(4)
    assert model(x).shape == (2, 4)
    handle.detach()
    assert model.get_classifier() is old
    assert model.num_classes == 5
    assert model(x).shape == (2, 5)


@pytest.mark.parametrize(
    ("build", "plugin", "reason"),
    [
        (lambda: timm.create_model("sot_7"), {}, "built with a second-order head"),
        (lambda: nn.TransformerEncoderLayer(16, 2), {}, "found none in TransformerEncoderLayer"),
        (lambda: vit(features_only=True, out_indices=(0,)), {}, "not features_only"),
        (
            lambda: timm.create_model("resnet18"),
            {"pooling": None},
            "only the class token, but resnet18 has none",
        ),
    ],
)
def test_hosts_it_makes_no_sense_in_are_refused_and_left_alone(build, plugin, reason):
    import saccade  # noqa: F401 (registers sot_7)

    model = build()
    keys = list(model.state_dict())
    with pytest.raises(HostError, match=reason):
        attach(model, SecondOrderHead(**plugin))
    assert list(model.state_dict()) == keys


def test_two_heads_on_one_host_are_refused():
    model = vit()
    attach(model, SecondOrderHead(**HEAD))
    with pytest.raises(HostError, match="already has a second-order head"):
        attach(model, SecondOrderHead(**HEAD))


def test_settings_are_checked_before_anything_is_attached():
    with pytest.raises(ValueError, match="fusion='average' was given"):
        SecondOrderHead(fusion="average")
    with pytest.raises(ValueError, match="normalization"):
        SecondOrderHead(normalization="nope")


@pytest.mark.parametrize(
    ("name", "head_dim"),
    [
        ("deit_tiny_patch16_224", 14),
        ("deit_small_patch16_224", 24),
        ("deit_base_patch16_224", 38),
        ("swin_tiny_patch4_window7_224", 24),
        ("swin_base_patch4_window7_224", 38),
        ("t2t_vit_12", 14),
        ("t2t_vit_14", 24),
        ("t2t_vit_24", 38),
    ],
)
def test_width_of_its_heads_is_the_papers_for_the_hosts_size(name, head_dim):
    with torch.device("meta"):
        model = timm.create_model(name)
        saccade.attach(model, saccade.SecondOrderHead())
    assert model.get_classifier().pool.head_dim == head_dim


def test_size_of_the_host_is_counted_without_its_classifier():
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch16_224", num_classes=60000)
        saccade.attach(model, saccade.SecondOrderHead(num_classes=10))
    assert model.get_classifier().pool.head_dim == 24
