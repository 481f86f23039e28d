"""Single texts, pairs and truncation as each model's paper or card has them, for every class of tokenizers."""

from importlib import import_module

import pytest
import torch
import transformers
from transformers.utils.sentencepiece_model_pb2_new import ModelProto

import saccade
from saccade.building.build import load_model
from saccade.data.spec import InputSpec
from saccade.runs.state import StateError
from saccade.settings import ConfigError, ModelConfig
from saccade.tasks.huggingface import build_host
from saccade.tasks.text import hosts
from saccade.tasks.text.hosts import TextHosts
from saccade.tasks.text.tokens import Reading, TextEncoder
from support.texts import make_model, sentences, write_tsv
from support.tokenizers import KINDS, UNIGRAM, bert, deberta, gemma3, gpt2

LONG = ("a b c d e f", "g h i j")


def described(folder, made, *, pair, **how):
    config, tokenizer = made
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    spec = InputSpec(("no", "yes"), 3, 224, [0.5] * 3, [0.5] * 3, task="text")
    how = {"max_length": None, "truncate": False, "scratch": True, **how}
    TextHosts.describe_model(spec, ModelConfig(name=str(folder)), how, pair=pair)
    return spec


def tokens_of(spec, *texts):
    reading = Reading.of(spec)
    found = reading.encode([texts])
    made = hosts.open_tokenizer(reading.tokenizer)
    return " ".join(made.id_to_token(number) for number in found.ids.tolist()), found.kinds.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_pairs_are_those_of_the_paper_or_card(tmp_path, kind):
    make, single, pair, segments, _, _ = KINDS[kind]
    assert tokens_of(described(tmp_path, make(), pair=False), "a b")[0] == single
    spec = described(tmp_path, make(), pair=True)
    found, kinds = tokens_of(spec, "a b", "g")
    assert found == pair
    assert Reading.of(spec).kinds == (segments is not None)
    assert kinds == segments or segments is None


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_truncation_keeps_something_of_both_texts_on_the_tokenizers_side(tmp_path, kind, side):
    make, _, _, _, *cut = KINDS[kind]
    spec = described(tmp_path, make(truncation_side=side), pair=True, max_length=8, truncate=True)
    assert tokens_of(spec, *LONG)[0] == cut[side == "left"]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_padded_on_the_right_whatever_the_tokenizer_says(tmp_path, kind, side):
    make, _, pair, segments, _, _ = KINDS[kind]
    spec = described(tmp_path, make(padding_side=side), pair=True)
    reading, encode = Reading.of(spec), TextEncoder(Reading.of(spec))
    batch = encode.collate([{"ids": t.ids, "kinds": t.kinds} for t in (reading.encode([("a b", "g")]),)])
    length = len(pair.split())
    assert batch["attention_mask"][0].tolist() == [1] * length + [0] * (8 - length)
    assert batch["input_ids"][0, length:].tolist() == [reading.pad] * (8 - length)
    if segments is not None:
        assert batch["token_type_ids"][0].tolist() == segments + [0] * (8 - length)


def test_a_cased_tokenizer_keeps_capitals(tmp_path):
    assert tokens_of(described(tmp_path, KINDS["spanbert"][0](), pair=False), "A b")[0] == "[CLS] A b [SEP]"
    assert tokens_of(described(tmp_path, bert(), pair=False), "A b")[0] == "[CLS] a b [SEP]"


def test_new_tokens_get_embeddings_where_sizes_are_nested(tmp_path):
    spec = described(tmp_path, gemma3(), pair=True)
    model = build_host(spec, kind=TextHosts.host_kind, weights=None)
    assert model.get_input_embeddings().weight.shape == (22 + 2, 16)
    assert Reading.of(spec).limit == 32
    spec.extra["scratch"] = False
    transformers.Gemma3ForSequenceClassification(gemma3()[0]).save_pretrained(tmp_path)
    begun = build_host(spec, kind=TextHosts.host_kind, weights=str(tmp_path))
    assert begun.get_input_embeddings().weight.shape == (22 + 2, 16)


@pytest.mark.parametrize("installed", [True, False])
def test_a_deberta_folder_as_it_is_published_has_its_sentencepiece_model_alone(tmp_path, monkeypatch, installed):
    proto = ModelProto()
    for piece in UNIGRAM[:-1]:
        kind = 1 if piece.startswith("▁") else 2 if piece == "[UNK]" else 3  # normal, unknown, control
        proto.pieces.add(piece=piece, score=-1.0 if kind == 1 else 0.0, type=kind)
    proto.trainer_spec.model_type, proto.trainer_spec.unk_id = 1, 3
    (tmp_path / "spm.model").write_bytes(proto.SerializeToString())
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    config, tokenizer = deberta()
    monkeypatch.setattr(tokenizer, "save_pretrained", lambda _: None)
    # The package itself is asked for and not used: the file is read as a message of protobuf.
    slow = import_module("transformers.convert_slow_tokenizer")
    monkeypatch.setattr(slow, "requires_backends", lambda *_: None)
    monkeypatch.setattr(hosts, "find_spec", lambda _: installed or None)
    if not installed:
        with pytest.raises(ConfigError, match=r"is spm\.model, .* pip install sentencepiece protobuf"):
            described(tmp_path, (config, tokenizer), pair=True)
        return
    spec = described(tmp_path, (config, tokenizer), pair=True)
    assert tokens_of(spec, "a b", "g")[0] == "[CLS] ▁a ▁b [SEP] ▁g [SEP]"


def test_a_tokenizers_own_class_token_and_separator_are_used(tmp_path):
    config, tokenizer = gpt2(cls_token="<cls>", sep_token="<sep>")
    config.vocab_size += 2
    spec = described(tmp_path, (config, tokenizer), pair=True)
    assert tokens_of(spec, "a", "g")[0] == "a <sep> g <cls>"
    assert spec.extra["host"]["added_tokens"] == 0


def test_a_trained_classifier_is_asked_as_it_was_trained(tmp_path):
    config, tokenizer = gpt2()
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert tokens_of(load_model(f"hf:{tmp_path}")[1], "a b")[0] == "a Ġb"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    rows = [[text, "a film", label] for text, label in sentences(24)]
    return write_tsv(tmp_path_factory.mktemp("rte") / "train.tsv", ["sentence1", "sentence2", "label"], rows).parent


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A decoder with a word for each letter of its own, which has neither class token nor delimiter."""
    words = ["[UNK]", *sorted({word for text, _ in sentences(200) for word in text.split()})]
    return make_model(tmp_path_factory.mktemp("gpt"), "gpt", vocabulary=words), words


def train(data, model, out, **more):
    options = {"epochs": 1, "batch_size": 8, "lr": 1e-2, "device": "cpu", "quiet": True, **more}
    return saccade.train(str(data), task="text", model=str(model), out=out, **options)


@pytest.mark.parametrize("plugins", [(), ("second_order:num_heads=1,head_dim=4",)])
def test_new_embeddings_are_trained_beside_the_pretrained_ones(pairs, plain, tmp_path, plugins):
    folder, words = plain
    train(pairs, folder, tmp_path / "still", plugins=plugins, lr=1e-12)
    train(pairs, folder, tmp_path / "run", plugins=plugins)
    still, moved = (
        load_model(tmp_path / name)[0].transformer.tokens_embed.weight.detach() for name in ("still", "run")
    )
    own = transformers.OpenAIGPTModel.from_pretrained(folder).tokens_embed.weight
    assert still.shape == moved.shape == (len(words) + 2, 16)
    torch.testing.assert_close(still[: len(words)], own)
    assert still[len(words) :].std().item() == pytest.approx(0.02, rel=0.5)
    assert (moved - still)[len(words) :].abs().amax(1).min() > 1e-3


def test_runs_of_earlier_versions_answer_as_they_did_and_are_not_resumed(pairs, plain, tmp_path, monkeypatch):
    folder, words = plain
    with monkeypatch.context() as before:
        before.setattr(hosts, "mark_spec", lambda spec, reading, **_: reading)
        train(pairs, folder, tmp_path / "run")
    spec = load_model(tmp_path / "run")[1]
    del spec.extra["tokens"]["cut_left"]  # which they do not have
    assert Reading.of(spec).encode([("good", "a film")]).ids.tolist() == [words.index(w) for w in ("good", "a", "film")]
    with pytest.raises(StateError, match=r"description of its inputs and outputs changed: .*tokens\.tokenizer"):
        saccade.train(resume=tmp_path / "run", quiet=True)
