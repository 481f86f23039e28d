"""What heads and Context Broadcasting owe every model that reads words: padding changes nothing; they come and go."""

import pytest
import torch
import transformers
from torch import nn

import saccade
from saccade.plugins.tokens import find_host

SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "pad_token_id": 0}
CLASSES = 3


def classifier(config, **more):
    return transformers.AutoModelForSequenceClassification.from_config(config(num_labels=CLASSES, **more))


HOSTS = {
    "bert": lambda: classifier(transformers.BertConfig, **SIZE),
    "roberta": lambda: classifier(transformers.RobertaConfig, pad_token_id=0, **SIZE),
    "distilbert": lambda: classifier(
        transformers.DistilBertConfig, dim=16, n_layers=2, n_heads=2, hidden_dim=24, vocab_size=50
    ),
    "deberta": lambda: classifier(
        transformers.DebertaV2Config, relative_attention=True, pos_att_type=["p2c", "c2p"], **SIZE
    ),
    "modernbert": lambda: classifier(
        transformers.ModernBertConfig, pad_token_id=0, cls_token_id=1, sep_token_id=2, **SIZE
    ),
    "spanbert": lambda: classifier(transformers.BertConfig, type_vocab_size=1, layer_norm_eps=1e-5, **SIZE),
    "gpt": lambda: classifier(transformers.OpenAIGPTConfig, **GPT),
    "gpt2": lambda: classifier(transformers.GPT2Config, bos_token_id=1, eos_token_id=2, **GPT),
    "llama": lambda: classifier(
        transformers.LlamaConfig, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_key_value_heads=2, **SIZE
    ),
}
CAUSAL = ("gpt", "gpt2", "llama")
HEAD = {"num_heads": 1, "head_dim": 3}
PLUGINS = {
    "ClassT+WordT": lambda: saccade.SecondOrderHead(**HEAD),
    "WordT": lambda: saccade.SecondOrderHead(class_token=None, **HEAD),
    "ClassT": lambda: saccade.SecondOrderHead(pooling=None),
    "concat": lambda: saccade.SecondOrderHead(fusion="concat", **HEAD),
    "aggr_all": lambda: saccade.SecondOrderHead(fusion="aggr_all", **HEAD),
    "CB": lambda: saccade.ContextBroadcast(layers="all"),
    "CB_S": lambda: saccade.ContextBroadcast(layers="all", scale=True),
}


def build(host):
    torch.manual_seed(0)
    model = HOSTS[host]().eval()
    for parameter in model.parameters():  # so that every token and place matters
        nn.init.normal_(parameter, std=0.3)
    return model


def put_on(model, plugin):
    handle = saccade.attach(model, PLUGINS[plugin]())
    torch.manual_seed(1)
    for parameter in handle.parameters():
        nn.init.normal_(parameter, std=0.3)
    return handle


def words(length=5, batch=1):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, 50, (batch, length), generator=generator)


def padded(ids, left, right):
    """Return a batch of a long text and of `ids` between padding."""
    whole = torch.zeros(2, left + ids.shape[1] + right, dtype=torch.long)
    whole[0], mask = words(whole.shape[1]), torch.ones_like(whole)
    whole[1, left : left + ids.shape[1]] = ids
    mask[1, :left], mask[1, left + ids.shape[1] :] = 0, 0
    return {"input_ids": whole, "attention_mask": mask}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("host", HOSTS)
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(host, plugin):
    model, ids = build(host), words()
    put_on(model, plugin)
    own_head = plugin.startswith("CB")
    alone = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    assert alone.abs().max() > 1e-3
    torch.testing.assert_close(model(input_ids=ids).logits[0], alone, atol=1e-5, rtol=1e-5)
    for left, right in ((0, 3), (3, 0), (2, 2)):
        if left and own_head and host not in CAUSAL:
            continue  # the host's own classifier reads what stands at place 0, padding or not
        got = model(**padded(ids, left, right)).logits[1]
        torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)
    inputs = padded(ids, 3, 0)
    if not own_head and host != "gpt2":  # whose second argument is no mask
        got = model(inputs["input_ids"], inputs["attention_mask"]).logits[1]
        torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("broadcast", ["CB", "CB_S"])
@pytest.mark.parametrize("plugin", ["ClassT", "WordT", "ClassT+WordT"])
@pytest.mark.parametrize("host", HOSTS)
@torch.no_grad()
def test_padding_changes_nothing_under_a_head_and_broadcast_together(host, plugin, broadcast):
    model, ids = build(host), words()
    put_on(model, broadcast)
    put_on(model, plugin)
    alone = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    assert alone.abs().max() > 1e-3
    for left, right in ((0, 3), (3, 0), (2, 2)):
        got = model(**padded(ids, left, right)).logits[1]
        torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("host", HOSTS)
@torch.no_grad()
def test_broadcast_of_left_padded_tokens_is_that_of_the_text_alone(host):
    model, ids = build(host), words()
    put_on(model, "CB")
    alone = model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids))[0][0]
    seen = []
    hook = model.base_model.register_forward_hook(lambda _module, _args, output: seen.append(output[0]))
    model(**padded(ids, 3, 0))
    hook.remove()
    torch.testing.assert_close(seen[0][1, 3:], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("host", HOSTS)
def test_decoders_are_told_from_encoders(host):
    found = find_host(HOSTS[host]())
    assert found.text
    assert found.causal == (host in CAUSAL)
    assert find_host(HOSTS[host]().base_model).causal == (host in CAUSAL)


@pytest.mark.parametrize("host", CAUSAL)
@torch.no_grad()
def test_broadcast_in_a_decoder_looks_only_back(host):
    model, ids = build(host), words(6)
    put_on(model, "CB")
    before = model.base_model(input_ids=ids)[0][0, :4]
    ids[0, 4:] = 7
    torch.testing.assert_close(model.base_model(input_ids=ids)[0][0, :4], before)


@pytest.mark.parametrize("host", CAUSAL)
@torch.no_grad()
def test_class_token_of_a_decoder_is_the_last_that_counts_and_no_word(host):
    model, ids = build(host), words()
    put_on(model, "ClassT+WordT")
    tokens = model.base_model(input_ids=ids)[0]
    head = model.score.layer
    want = head.class_fc(tokens[:, -1]) + head.word_fc(head.pool(tokens[:, :-1]))
    torch.testing.assert_close(model(**padded(ids, 0, 3)).logits[1], want[0], atol=1e-5, rtol=1e-5)
    other = build(host)
    put_on(other, "WordT")
    pooled = other.score.layer.word_fc(other.score.layer.pool(other.base_model(input_ids=ids)[0][:, :-1]))
    torch.testing.assert_close(other(**padded(ids, 2, 1)).logits[1], pooled[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("plugin", ["ClassT", "ClassT+WordT", "WordT", "CB_S"])
@pytest.mark.parametrize("host", HOSTS)
def test_attach_train_save_reload_and_detach(host, plugin, tmp_path):
    model = build(host)
    inputs, labels = padded(words(), 0, 3), torch.tensor([0, 2])
    before = model(**inputs).logits.detach()
    keys = set(model.state_dict())
    handle = put_on(model, plugin)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(**inputs, labels=labels).loss.backward()
    assert all(parameter.grad is not None for parameter in handle.parameters())
    optimizer.step()
    model.eval()
    trained = model(**inputs).logits.detach()
    model.save_pretrained(tmp_path)
    again = saccade.from_pretrained(tmp_path)
    torch.testing.assert_close(again.eval()(**inputs).logits, trained, atol=1e-6, rtol=1e-6)
    handle.detach()
    assert set(model.state_dict()) == keys
    assert not hasattr(model.config, "saccade_plugins")
    fresh = build(host)
    off = put_on(fresh, plugin)
    off.detach()
    torch.testing.assert_close(fresh(**inputs).logits, before, atol=0, rtol=0)


@pytest.mark.parametrize(
    "told",
    ["second_order", [{"name": "drloc", "options": {}}], [{"name": "second_order", "options": {"num_heads": {}}}]],
)
def test_a_strangers_record_of_plugins_is_refused(told, tmp_path):
    model = build("bert")
    model.config.saccade_plugins = told
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json"):
        saccade.from_pretrained(tmp_path)


def test_hugging_faces_trainer_trains_it_and_it_comes_back(tmp_path):
    pytest.importorskip("accelerate")
    model = build("bert")
    put_on(model, "ClassT+WordT")
    rows = [{"input_ids": words(4 + n % 3)[0], "labels": n % CLASSES} for n in range(8)]
    tokens = [{**row, "attention_mask": torch.ones_like(row["input_ids"])} for row in rows]

    def collate(some):
        longest = max(len(row["input_ids"]) for row in some)
        pad = {
            name: torch.stack([nn.functional.pad(row[name], (0, longest - len(row[name]))) for row in some])
            for name in ("input_ids", "attention_mask")
        }
        return {**pad, "labels": torch.tensor([row["labels"] for row in some])}

    told = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True, save_steps=2
    )
    trainer = transformers.Trainer(model=model, args=told, train_dataset=tokens, data_collator=collate)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    inputs = padded(words(), 0, 3)
    model.eval()
    for folder in ("saved", "out/checkpoint-2"):
        again = saccade.from_pretrained(tmp_path / folder)
        torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits, atol=1e-6, rtol=1e-6)


def vilt():
    torch.manual_seed(0)
    config = transformers.ViltConfig(
        image_size=32, patch_size=8, max_position_embeddings=40, num_labels=CLASSES, max_image_length=-1, **SIZE
    )
    model = transformers.ViltForQuestionAnswering(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def with_image(inputs):
    count = len(inputs["input_ids"])
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    whole = {"pixel_values": image.expand(count, -1, -1, -1), "pixel_mask": torch.ones(count, 32, 32, dtype=torch.long)}
    return {**inputs, **whole}


JOINT = {
    "CB_S image": lambda: [saccade.ContextBroadcast(layers="all", scale=True, tokens="image")],
    "CB_S text": lambda: [saccade.ContextBroadcast(layers="all", scale=True, tokens="text")],
    "CB_S both": lambda: [saccade.ContextBroadcast(layers="all", scale=True)],
    **{name: (lambda name=name: [PLUGINS[name]()]) for name in ("ClassT", "WordT", "ClassT+WordT")},
    **{
        f"CB_S and {name}": (lambda name=name: [PLUGINS["CB_S"](), PLUGINS[name]()])
        for name in ("ClassT", "WordT", "ClassT+WordT")
    },
}


@pytest.mark.parametrize("plugins", JOINT)
def test_plugins_on_vision_and_language(plugins, tmp_path):
    model, ids = vilt(), words()
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    handles = [saccade.attach(model, plugin) for plugin in JOINT[plugins]()]
    torch.manual_seed(1)
    added = [parameter for handle in handles for parameter in handle.parameters()]
    for parameter in added:
        nn.init.normal_(parameter, std=0.3)
    alone = model(**with_image(text)).logits[0].detach()
    own_head = plugins in ("CB_S image", "CB_S text", "CB_S both")  # which reads what stands at place 0
    for left, right in ((0, 4),) if own_head else ((0, 4), (4, 0), (2, 2)):
        got = model(**with_image(padded(ids, left, right))).logits[1].detach()
        torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(**with_image(text), labels=torch.ones(1, CLASSES)).loss.backward()
    assert all(parameter.grad is not None for parameter in added)
    optimizer.step()
    trained = model(**with_image(text)).logits.detach()
    assert not torch.allclose(trained[0], alone)
    model.save_pretrained(tmp_path)
    again = saccade.from_pretrained(tmp_path)
    torch.testing.assert_close(again(**with_image(text)).logits, trained, atol=1e-5, rtol=1e-5)
    for handle in reversed(handles):
        handle.detach()
    fresh = vilt()
    off = [saccade.attach(fresh, plugin) for plugin in JOINT[plugins]()]
    for handle in reversed(off):
        handle.detach()
    want = vilt()(**with_image(text)).logits  # ViLT draws the order of patches
    torch.testing.assert_close(fresh(**with_image(text)).logits, want, atol=1e-5, rtol=1e-5)
    assert set(model.state_dict()) == set(fresh.state_dict())
