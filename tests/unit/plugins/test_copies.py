"""Models with plug-ins survive pickling, copying and `torch.save`, and the copies detach alone."""

import copy
import pickle
import subprocess
import sys

import pytest
import timm
import torch
import transformers

import saccade
from saccade.plugins import PLUGINS, SecondOrderHead, attach, attached

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 2, "num_classes": 5}
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 20}
SWIN = {"img_size": 56, "embed_dim": 24, "depths": (1, 1, 2), "num_heads": (1, 2, 4), "num_classes": 5}
ATTACHABLE = [name for name in PLUGINS if hasattr(PLUGINS[name], "install")]
WRAPPING = {
    "drloc": lambda model: saccade.RelativeLocalization(model, pairs=4),
    "distill": lambda model: PLUGINS["distill"](model, teacher=vit()),
    "token_label": lambda model: PLUGINS["token_label"](model, teacher=vit()),
}
WAYS = {"pickled": lambda model: pickle.loads(pickle.dumps(model)), "copied": copy.deepcopy}


def vit():
    return timm.create_model("vit_tiny_patch16_224", **SMALL)


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZE))


def gpt():
    return transformers.OpenAIGPTForSequenceClassification(
        transformers.OpenAIGPTConfig(n_embd=16, n_layer=2, n_head=2, vocab_size=20, pad_token_id=0)
    )


def swin():
    return timm.create_model("swin_tiny_patch4_window7_224", **SWIN)


def pit():
    return timm.create_model("pit_ti_224", num_classes=5)


CASES = [
    *((vit, name, {}) for name in ATTACHABLE),
    (vit, "second_order", {"beside": True}),
    *((swin, name, {}) for name in ("broadcast", "lora", "second_order", "squeeze", "token_embedding")),
    (pit, "second_order", {}),
    *((make, name, {}) for make in (bert, gpt) for name in ("broadcast", "lora", "second_order")),
]


def answer(model):
    torch.manual_seed(0)
    with torch.no_grad():
        if hasattr(model, "config"):
            return model(torch.randint(1, 20, (2, 7))).logits
        return model(torch.randn(2, 3, *model.patch_embed.img_size))


def test_every_plug_in_is_here():
    assert {name for _, name, _ in CASES} | WRAPPING.keys() == set(PLUGINS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("make", "name", "options"), CASES, ids=[f"{m.__name__}-{n}{len(o)}" for m, n, o in CASES])
def test_a_copy_answers_alike_and_detaches_alone(make, name, options, way):
    model = make().eval()
    before = answer(model)
    attach(model, PLUGINS[name](**options))
    model.eval()
    after = answer(model)
    twin = WAYS[way](model)
    assert torch.equal(answer(twin), after)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)  # the copy has its own weights, and refers to itself alone
    assert torch.equal(answer(twin), after)
    attached(twin)[0].detach()
    assert torch.equal(answer(twin), before)
    assert len(attached(model)) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRAPPING)
def test_a_copied_task_trains_alike(name, way):
    task = WRAPPING[name](vit())
    twin = WAYS[way](task)
    batch = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    losses = []
    for one in (task, twin):
        torch.manual_seed(1)
        found = one(*batch)
        found["loss"].backward()
        losses.append(found["loss"])
    assert torch.equal(*losses)
    grads = [[p.grad for p in one.model.parameters()] for one in (task, twin)]
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_saved_model_is_loaded_by_another_process(tmp_path):
    model = vit().eval()
    attach(model, SecondOrderHead())
    torch.save(model, tmp_path / "model.pt")
    torch.save((images := torch.randn(2, 3, 32, 32), model(images).detach()), tmp_path / "answer.pt")
    code = (
        "import sys, torch; model = torch.load(sys.argv[1], weights_only=False)"
        "; images, answer = torch.load(sys.argv[2]); torch.testing.assert_close(model(images), answer)"
        "; model.reset_classifier(3)"
        "; assert model(images).shape == (2, 3); assert model.get_classifier() is model.second_order.layer"
    )
    files = [str(tmp_path / name) for name in ("model.pt", "answer.pt")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
