"""LoRA: what it computes, what it trains, and what it refuses."""

import sys

import pytest
import timm
import torch
import transformers

import saccade
from saccade.building.build import build_model, build_task
from saccade.data.spec import InputSpec
from saccade.plugins import HostError, LoRA, SecondOrderHead, attach, find_host
from saccade.settings import ConfigError, LossConfig, ModelConfig, OptimConfig
from saccade.tasks.opening import choose_task
from saccade.training.optim import build_optimizer

pytestmark = pytest.mark.usefixtures("few_answers")

SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 20}
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
QKV = ["q_proj", "k_proj", "v_proj"]


def vit(name="vit_tiny_patch16_224", **more):
    return timm.create_model(name, num_classes=5, **SMALL, **more).eval()


def classifier(kind, **more):
    config = getattr(transformers, f"{kind}Config")(**SIZE, pad_token_id=0, **more)
    return getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()


def llama():
    return classifier("Llama", num_key_value_heads=1, bos_token_id=1, eos_token_id=2)


def stir(handle):
    with torch.no_grad():
        for parameter in handle.parameters():
            parameter.normal_()


def trained(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def adapted(model):
    return {name.split(".lora.")[0].rpartition(".")[2] for name in model.state_dict() if ".lora." in name}


def test_a_layer_adds_the_scaled_product_of_two_small_ones():
    model, x = vit(), torch.randn(2, 17, 32)
    layer = model.blocks[0].mlp.fc1
    before = layer(x)
    handle = attach(model, LoRA(rank=4, alpha=6.0))
    assert torch.equal(layer(x), before)
    stir(handle)
    low = layer.lora.lora_B.weight @ layer.lora.lora_A.weight
    assert layer.lora.lora_A.weight.shape == (4, 32)
    torch.testing.assert_close(layer(x), before + 6 / 4 * x @ low.T)


@pytest.mark.parametrize("host", [vit, llama, lambda: classifier("Bert")])
def test_other_plugins_find_the_layers_and_not_what_is_beside_them(host):
    model = host()
    before = find_host(model).blocks
    attach(model, LoRA())
    assert find_host(model).blocks == before


def test_adapters_classifier_and_other_plugins_are_trained_alone():
    model = llama()
    attach(model, SecondOrderHead(num_heads=1, head_dim=3))
    before = trained(model)
    handle = attach(model, LoRA())
    assert all(".lora." in name or name.startswith("score.") for name in trained(model))
    assert {name for name in before if name.startswith("score.")} < trained(model)
    handle.detach()
    assert trained(model) == before
    image = vit()
    attach(image, LoRA())
    assert {name for name in trained(image) if ".lora." not in name} == {"head.weight", "head.bias"}


def test_parameters_that_were_loaded_in_place_of_others_are_trained_again():
    model = vit()
    handle = attach(model, LoRA())
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    assert len(trained(model)) < len(list(model.parameters()))
    handle.detach()
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("host", "plain"), [(llama, set()), (lambda: classifier("Bert"), {"pooler.dense.weight", "pooler.dense.bias"})]
)
def test_norms_are_trained_if_asked_and_poolers_always(host, plain):
    model = host()
    attach(model, LoRA(norms=True))
    rest = {name.partition(".")[2] for name in trained(model) if ".lora." not in name}
    assert plain <= rest
    assert {name for name in rest if "norm" in name.lower()} == {
        name.partition(".")[2] for name, _ in model.named_parameters() if "norm" in name.lower()
    }


@pytest.mark.parametrize(
    ("host", "targets", "names"),
    [
        (llama, "all", {*QKV, "o_proj", "gate_proj", "up_proj", "down_proj"}),
        (llama, "attention", {*QKV, "o_proj"}),
        (llama, ["q_proj", "v_proj"], {"q_proj", "v_proj"}),
        (lambda: classifier("Bert"), "attention", {"query", "key", "value", "dense"}),
        (vit, "attention", {"qkv", "proj"}),
        (lambda: vit("beit_base_patch16_224"), "attention", {"proj"}),  # its qkv is read by its weight, not called
    ],
)
def test_targets_choose_layers(host, targets, names):
    model = host()
    attach(model, LoRA(targets=targets))
    assert adapted(model) == names


def test_transposed_layers_of_gpt_get_adapters():
    model = transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20, pad_token_id=0)
    ).eval()
    ids = torch.randint(3, 20, (2, 5))
    before = model(ids).logits
    handle = attach(model, LoRA())
    assert adapted(model) == {"c_attn", "c_proj", "c_fc"}
    stir(handle)
    assert not torch.allclose(model(ids).logits, before)


def test_new_tokens_of_a_frozen_decoder_are_trained():
    model = llama()
    model.added_tokens = 2
    handle = attach(model, LoRA())
    embedding, ids = model.model.embed_tokens, torch.tensor([[0, 17, 18, 19]])
    stir(handle)
    moved = embedding(ids) - embedding.weight[ids]
    assert torch.equal(moved[0, :2], torch.zeros(2, 16))
    torch.testing.assert_close(moved[0, 2:], embedding.lora.weight)


def test_dropout_is_drawn_in_training_alone():
    model = vit()
    stir(attach(model, LoRA(drop_rate=0.5)))
    layer, x = model.blocks[0].attn.qkv, torch.randn(3, 32)
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rank": 0}, "rank=0"),
        ({"drop_rate": 1.0}, "drop_rate=1.0"),
        ({"targets": "mlp"}, "targets='mlp'"),
        ({"targets": []}, r"targets=\[\]"),
    ],
)
def test_wrong_options_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        LoRA(**options)


def test_unsuitable_hosts_are_refused_and_left_as_they_were():
    model = llama()
    with pytest.raises(HostError, match=r"\['q_proj', 'c_attn'\].*down_proj, gate_proj"):
        attach(model, LoRA(targets=["q_proj", "c_attn"]))
    assert trained(model) == {name for name, _ in model.named_parameters()}
    attach(model, LoRA())
    with pytest.raises(HostError, match="already has LoRA"):
        attach(model, LoRA())


def test_a_missing_peft_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    model = llama()
    with pytest.raises(ImportError, match=r"pip install 'saccade\[lora\]'"):
        attach(model, LoRA())
    assert trained(model) == {name for name, _ in model.named_parameters()}


def test_random_weights_under_adapters_are_told(capsys, tmp_path):
    settings = {"model.options": {key: value for key, value in SMALL.items() if key != "img_size"}}
    settings |= {"data.train_limit": 20, "optim.batch_size": 10, "engine.device": "cpu", "data.workers": 0}
    given = {"model": "vit_tiny_patch16_224", "epochs": 1, "img_size": 32, "settings": settings}
    first = saccade.train(out=tmp_path / "first", **given)
    assert "random weights" not in capsys.readouterr().err
    saccade.train(out=tmp_path / "random", plugins=["lora"], **given)
    assert "lora trains adapters beside random weights" in " ".join(capsys.readouterr().err.split())
    saccade.train(out=tmp_path / "begun", plugins=["lora"], checkpoint=str(first.path), **given)
    assert "random weights" not in capsys.readouterr().err
    own, begun = (saccade.load_model(tmp_path / name)[0].state_dict() for name in ("first", "begun"))
    assert all(torch.equal(begun[name], value) for name, value in own.items() if not name.startswith("head."))


def task_of(**config):
    config = ModelConfig(name="vit_tiny_patch16_224", options=SMALL, plugins=["lora:rank=2"], **config)
    spec = InputSpec(tuple("abcde"), 3, 32, [0.5] * 3, [0.5] * 3)
    model = build_model(config, spec, seed=0)
    return build_task(model, choose_task("classify"), config, LossConfig(), spec, seed=0)


def test_layers_rates_are_those_of_the_adapters_layers():
    task = task_of()
    groups = build_optimizer(task, OptimConfig(layer_decay=0.5), device=torch.device("cpu")).param_groups
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    assert set(scales) == {id(p) for p in task.model.parameters() if p.requires_grad}
    lower, upper = (scales[id(block.attn.qkv.lora.lora_A.weight)] for block in task.model.blocks)
    assert lower == upper / 2


@pytest.mark.parametrize("setting", [{"freeze": 0.5}, {"probe": True}])
def test_freezing_twice_is_refused(setting):
    with pytest.raises(ConfigError, match=rf"model\.{next(iter(setting))} was given with the plug-in lora"):
        task_of(**setting)
