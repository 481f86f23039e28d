import pytest
import timm
import torch
from torch.nn import functional as F

from saccade.plugins import HostError, UniformHead, attach
from saccade.plugins.uniform import UniformAttention

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}


def vit(**kwargs):
    return timm.create_model("vit_tiny_patch16_224", **{**SIZES, **kwargs}).double().eval()


def long_way(attention, x, uniform_heads):
    """Attention of the host's own weights in which the last heads' scores are all equal."""
    B, N, _ = x.shape
    heads = (3, attention.num_heads, attention.head_dim)
    q, k, v = attention.qkv(x).unflatten(-1, heads).permute(2, 0, 3, 1, 4).unbind(0)
    scores = attention.q_norm(q) @ attention.k_norm(k).mT * attention.head_dim**-0.5
    scores[:, attention.num_heads - uniform_heads :] = 0
    return attention.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, N, -1))


@pytest.mark.parametrize("variant", ["A", "B", "C"])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"qkv_bias": False}], ids=str)
def test_starts_as_the_host_with_the_last_head_uniform(variant, options):
    model = vit(**options)
    old = model.blocks[0].attn
    attach(model, UniformHead(variant))
    new = model.blocks[0].attn
    assert isinstance(new, UniformAttention)
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    torch.testing.assert_close(new(x), long_way(old, x, uniform_heads=0 if variant == "C" else 1))


@pytest.mark.parametrize("variant", ["B", "C"])
def test_what_is_added_is_uniform_attention(variant):
    model = vit()
    attach(model, UniformHead(variant))
    attention = model.blocks[0].attn
    torch.nn.init.normal_(attention.proj.weight)
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    inner = attention.num_heads * attention.head_dim
    uniform = torch.zeros(17, 17, dtype=torch.float64).softmax(-1) @ attention.value(x)
    own = F.linear(uniform, attention.proj.weight[:, inner:])
    attention.proj.weight.data[:, inner:], got = 0, attention(x)
    torch.testing.assert_close(got - attention(x), own)


@pytest.mark.parametrize(("variant", "millions"), [("A", 21), ("B", 22), ("C", 29)])
def test_sizes_of_vit_small_are_those_of_the_paper(variant, millions):
    model = timm.create_model("vit_small_patch16_224")
    before = sum(p.numel() for p in model.parameters())
    assert round(before / 1e6) == 22
    handle = attach(model, UniformHead(variant))
    after = sum(p.numel() for p in model.parameters())
    assert round(after / 1e6) == millions
    if variant == "A":
        assert before - after == 12 * 2 * 64 * (384 + 1)  # query and key of one head
    if variant == "B":
        assert abs(after / before - 1) < 5e-5
    if variant == "C":
        assert after - before == 12 * (4 * 384**2 + 2 * 384)
    handle.detach()
    assert sum(p.numel() for p in model.parameters()) == before


def test_training_does_not_touch_what_detach_brings_back():
    model = vit()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    before = model(x)
    handle = attach(model, UniformHead("A", layers=[0, -1]))
    assert [isinstance(block.attn, UniformAttention) for block in model.blocks] == [True, False, True]
    torch.optim.SGD(handle.parameters(), lr=0.1)
    model(x).square().sum().backward()
    with torch.no_grad():
        for p in handle.parameters():
            p -= 0.1 * p.grad
    handle.detach()
    assert torch.equal(model(x), before)


def test_every_token_gets_the_same_from_the_uniform_head():
    model = vit(num_heads=2)
    attach(model, UniformHead("A"))
    attention = model.blocks[0].attn
    attention.proj.weight.data[:, : attention.head_dim] = 0
    out = attention(torch.randn(1, 9, 24, dtype=torch.float64))
    torch.testing.assert_close(out, out[:, :1].expand_as(out))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: vit(num_heads=1), "only one head, but variant A must keep another"),
        (lambda: timm.create_model("cait_xxs24_224", **SIZES), "has TalkingHeadAttn"),
        (
            lambda: timm.create_model("beit_base_patch16_224", **SIZES),
            r"blocks\.0 of beit_base_patch16_224 has Attention",
        ),
        (lambda: timm.create_model("xcit_nano_12_p16_224", **SIZES), "has XCA"),
        (lambda: timm.create_model("mixer_s32_224"), "has NoneType"),
        (lambda: timm.create_model("resnet50", layers=(1, 1, 1, 1)), "found none in resnet50"),
    ],
    ids=["one_head", "cait", "beit", "xcit", "mixer", "resnet50"],
)
def test_other_attention_is_refused(build, message):
    with pytest.raises(HostError, match=message):
        attach(build(), UniformHead("A"))


def test_masks_are_refused_rather_than_ignored():
    model = vit()
    attach(model, UniformHead("A"))
    x = torch.randn(1, 17, 24, dtype=torch.float64)
    with pytest.raises(ValueError, match="attn_mask"):
        model.blocks[0].attn(x, attn_mask=torch.zeros(17, 17))


def test_unknown_variant_is_refused():
    with pytest.raises(ValueError, match=r"variant='D' was given; allowed are 'A', 'B', 'C'"):
        UniformHead("D")
