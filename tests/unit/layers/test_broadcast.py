import pytest
import torch

from saccade.layers.broadcast import Broadcast, running_mean, token_mean


def uniform_attention(x):
    """Attention with equal scores, the long way."""
    scores = torch.zeros(x.shape[0], x.shape[1], x.shape[1], dtype=x.dtype)
    return scores.softmax(-1) @ x


def test_broadcast_is_half_the_token_and_half_uniform_attention():
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(Broadcast()(x), (x + uniform_attention(x)) / 2)


def test_scaled_broadcast_adds_a_share_of_uniform_attention_to_each_channel():
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    layer = Broadcast(5, scale=True).double()
    assert torch.equal(layer(x), x)
    torch.nn.init.normal_(layer.scale)
    torch.testing.assert_close(layer(x), x + layer.scale * uniform_attention(x))
    assert sum(p.numel() for p in layer.parameters()) == 5


@pytest.mark.parametrize("scale", [False, True])
def test_layouts_agree(scale):
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)  # B, H, W, C
    layers = {layout: Broadcast(5, scale=scale, layout=layout).double() for layout in ("NLC", "NHWC", "NCHW")}
    if scale:
        for layer in layers.values():
            layer.scale.data = torch.arange(5.0, dtype=torch.float64)
    want = layers["NLC"](x.flatten(1, 2)).unflatten(1, (3, 4))
    torch.testing.assert_close(layers["NHWC"](x), want)
    torch.testing.assert_close(layers["NCHW"](x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), want)


@pytest.mark.parametrize("causal", [False, True])
def test_tokens_outside_the_mask_neither_count_nor_change(causal):
    x = torch.randn(2, 6, 5)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]]).bool()
    layer = Broadcast(causal=causal)
    got = layer(x, mask)
    torch.testing.assert_close(got[0, :4], layer(x[:1, :4])[0])
    torch.testing.assert_close(got[1, 2:], layer(x[1:, 2:])[0])
    assert torch.equal(got[~mask], x[~mask])
    x[~mask] = torch.nan
    assert torch.equal(layer(x, mask)[mask], got[mask])


def test_empty_mask_changes_nothing():
    x = torch.randn(2, 6, 5)
    assert torch.equal(Broadcast()(x, torch.zeros(2, 6, dtype=torch.bool)), x)


def test_skipped_tokens_neither_count_nor_change():
    x = torch.randn(2, 6, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]).bool()
    layer = Broadcast(skip=2)
    assert torch.equal(layer(x)[:, :2], x[:, :2])
    torch.testing.assert_close(layer(x)[:, 2:], Broadcast()(x[:, 2:]))
    torch.testing.assert_close(layer(x, mask)[:, 2:], Broadcast()(x[:, 2:], mask[:, 2:]))


def test_causal_mean_is_uniform_attention_to_the_past():
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    scores = torch.full((6, 6), -torch.inf, dtype=torch.float64).triu(1)
    torch.testing.assert_close(running_mean(x), scores.softmax(-1) @ x)
    with pytest.raises(ValueError, match="sequence B, N, C"):
        Broadcast(causal=True)(torch.randn(2, 3, 4, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_mean_neither_overflows_nor_stalls(dtype, masked):
    mask = torch.ones(1, 4096, dtype=torch.bool) if masked else None
    for value in (60000.0, 1.0):
        x = torch.full((1, 4096, 3), value, dtype=dtype)
        assert torch.equal(Broadcast()(x, mask), x)
        assert torch.equal(Broadcast(causal=True)(x, mask), x)
    assert token_mean(x).dtype is dtype


def test_wrong_options_are_explained():
    with pytest.raises(ValueError, match=r"layout='CHW' was given; allowed are 'NLC', 'NHWC', 'NCHW'"):
        Broadcast(layout="CHW")
    with pytest.raises(ValueError, match="give dim"):
        Broadcast(scale=True)
