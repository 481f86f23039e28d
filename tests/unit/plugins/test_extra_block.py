import copy
import math

import pytest
import timm
import torch
from torch.nn import functional as F

from saccade.plugins import ContextBroadcast, attach
from saccade.plugins.extra_block import ExtraAttention, ExtraBlock
from saccade.plugins.tokens import HostError

KINDS = ["attention", "mlp"]


def vit(**options):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **options}).double().eval()


def bert(**options):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return transformers.BertModel(transformers.BertConfig(vocab_size=50, **sizes, **options)).eval()


@pytest.fixture
def x():
    return torch.randn(2, 3, 32, 32, dtype=torch.float64)


def test_attention_is_the_residual_layer_written_out():
    model, tokens = vit(), torch.randn(2, 17, 32, dtype=torch.float64)
    want = model.blocks[-1](tokens)
    attach(model, ExtraBlock(kind="attention"))
    layer = model.blocks[-1].extra_block
    q, k, v = layer.qkv(F.layer_norm(want, (32,), layer.norm.weight, layer.norm.bias, 1e-6)).split(32, dim=-1)
    heads = []
    for part in (slice(0, 16), slice(16, 32)):  # two heads, as the host has
        weights = (q[..., part] @ k[..., part].mT / math.sqrt(16)).softmax(-1)
        heads.append(weights @ v[..., part])
    torch.testing.assert_close(model.blocks[-1](tokens), want + layer.proj(torch.cat(heads, dim=-1)))


def test_mlp_is_the_residual_layer_written_out():
    model, tokens = vit(), torch.randn(2, 17, 32, dtype=torch.float64)
    want = model.blocks[-1](tokens)
    attach(model, ExtraBlock(kind="mlp"))
    layer = model.blocks[-1].extra_block
    hidden = F.gelu(layer.fc1(F.layer_norm(want, (32,), layer.norm.weight, layer.norm.bias, 1e-6)))
    torch.testing.assert_close(model.blocks[-1](tokens), want + layer.fc2(hidden))


def test_both_kinds_cost_nearly_the_same():
    sizes = {}
    for kind in KINDS:
        handle = attach(vit(embed_dim=192, num_heads=3), ExtraBlock(kind=kind))
        sizes[kind] = sum(p.numel() for p in handle.parameters())
    assert sizes["attention"] == pytest.approx(4 * 192**2, rel=0.02)
    assert sizes["mlp"] == pytest.approx(sizes["attention"], rel=0.01)


@pytest.mark.parametrize(("position", "block"), [(-1, 3), (0, 0), (2, 2), (-2, 2)])
def test_position_names_the_block_it_comes_after(position, block):
    model = vit()
    attach(model, ExtraBlock(position=position))
    assert [hasattr(b, "extra_block") for b in model.blocks] == [i == block for i in range(4)]


@pytest.mark.parametrize("kind", KINDS)
def test_detaching_restores_outputs_and_keys_exactly(kind, x):
    model = vit()
    before, keys = model(x), list(model.state_dict())
    handle = attach(model, ExtraBlock(kind=kind))
    assert not torch.allclose(model(x), before)
    assert any("extra_block" in key for key in model.state_dict())
    handle.detach()
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_goes_round_and_a_copy_stands_alone(kind, x):
    first, second = vit(), vit()
    attach(first, ExtraBlock(kind=kind))
    attach(second, ExtraBlock(kind=kind))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    copied = copy.deepcopy(first)
    with torch.no_grad():
        for parameter in copied.blocks[-1].extra_block.parameters():
            parameter.zero_()
    assert torch.equal(first(x), second(x))
    assert not torch.equal(copied(x), first(x))


@pytest.mark.parametrize("kind", KINDS)
def test_every_new_parameter_gets_a_gradient(kind, x):
    model = vit()
    handle = attach(model, ExtraBlock(kind=kind))
    model(x).square().sum().backward()
    for parameter in handle.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_exported_program_answers_alike(kind):
    model = vit().float()
    attach(model, ExtraBlock(kind=kind))
    x = torch.randn(2, 3, 32, 32)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))


def test_it_goes_together_with_another_plugin(x):
    model = vit()
    before = model(x)
    handles = [attach(model, ContextBroadcast()), attach(model, ExtraBlock()), attach(model, ExtraBlock(kind="mlp"))]
    assert hasattr(model.blocks[-1], "extra_block_2")
    for handle in handles:
        handle.detach()
    assert torch.equal(model(x), before)


def test_padding_is_not_attended_to():
    model = bert()
    attach(model, ExtraBlock())
    ids = torch.randint(3, 40, (1, 6))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    padded, short = model(ids, mask).last_hidden_state, model(ids[:, :4]).last_hidden_state
    torch.testing.assert_close(padded[:, :4], short)
    assert padded.isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_causal_attention_sees_only_what_stands_before(masked):
    layer = ExtraAttention(8, num_heads=2, causal=True)
    x = torch.randn(1, 5, 8)
    other = x.clone()
    other[:, 3:] += 1
    mask = torch.ones(1, 5, dtype=torch.bool) if masked else None
    torch.testing.assert_close(layer(x, mask)[:, :3], layer(other, mask)[:, :3])
    assert not torch.allclose(layer(x, mask)[:, 3:], layer(other, mask)[:, 3:])


def test_causal_host_stays_causal():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    model = transformers.GPT2Model(config).eval()
    attach(model, ExtraBlock())
    ids = torch.randint(3, 40, (1, 6))
    whole, part = model(ids, use_cache=False).last_hidden_state, model(ids[:, :4], use_cache=False).last_hidden_state
    torch.testing.assert_close(whole[:, :4], part)


@pytest.mark.parametrize(
    ("name", "reason", "options"),
    [
        ("resnet18", "found none", {}),
        ("swin_tiny_patch4_window7_224", "within windows", {"embed_dim": 12, "depths": (1, 1, 1, 1)}),
        ("convnext_atto", "returns maps", {}),
    ],
)
def test_hosts_without_a_column_of_tokens_are_refused(name, reason, options):
    model = timm.create_model(name, **options)
    keys = list(model.state_dict())
    with pytest.raises(HostError, match=reason):
        attach(model, ExtraBlock())
    assert list(model.state_dict()) == keys


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="kind='conv' was given"):
        ExtraBlock(kind="conv")
    with pytest.raises(ValueError, match="mlp_ratio=0"):
        ExtraBlock(mlp_ratio=0)
    with pytest.raises(ValueError, match="num_heads=0"):
        ExtraBlock(num_heads=0)
    with pytest.raises(HostError, match="num_heads=5 does not divide"):
        attach(vit(), ExtraBlock(num_heads=5))
    with pytest.raises(HostError, match="has 4 blocks"):
        attach(vit(), ExtraBlock(position=4))
