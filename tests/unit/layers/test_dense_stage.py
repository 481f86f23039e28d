"""SoT's dense embedding gives the same tokens and gradients a few images at a time as all at once."""

import copy

import pytest
import torch
from torch import nn

from saccade.layers import dense_stage
from saccade.layers.token_embed import DenseNetEmbed

CASES = [(16, 48, 40), (16, 33, 47), (8, 25, 31), (16, 15, 15), (4, 18, 17)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(dense_stage, "ROWS", 300)  # one image in the first stage, several in the last


def pair(stride: int, *, training: bool) -> tuple[DenseNetEmbed, DenseNetEmbed]:
    torch.manual_seed(0)
    quick = DenseNetEmbed(embed_dim=8, stride=stride).double().train(training)
    for module in quick.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    plain = copy.deepcopy(quick)
    plain.takes_parts = lambda _: False
    return quick, plain


def images(height: int, width: int) -> torch.Tensor:
    return torch.randn(5, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def near(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("stride", "height", "width"), CASES)
def test_inference_gives_the_same_tokens(stride, height, width):
    quick, plain = pair(stride, training=False)
    x = images(height, width)
    given = x.clone()
    with torch.inference_mode():
        assert quick.takes_parts(x)
        near(quick(x), plain(x))
    assert torch.equal(x, given)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("stride", "height", "width"), CASES)
def test_gradients_and_running_statistics_are_the_same(stride, height, width, training):
    found = []
    for embed in pair(stride, training=training):
        x = images(height, width).requires_grad_()
        tokens = embed(x)
        (tokens.square() * torch.linspace(1, 2, tokens.numel()).view_as(tokens)).sum().backward()
        found.append([tokens, x.grad, *(p.grad for p in embed.parameters()), *embed.buffers()])
    for quick, plain in zip(*found, strict=True):
        near(quick, plain)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_statistics_of_several_batches_are_tracked_as_a_norm_does(momentum):
    found = []
    for embed in pair(16, training=True):
        for module in embed.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = momentum
        for scale in (1.0, 2.0, 3.0):
            embed(images(32, 32) * scale)
        found.append(list(embed.buffers()))
    for quick, plain in zip(*found, strict=True):
        near(quick, plain)


def test_norms_that_keep_still_use_what_they_have_kept():
    quick, plain = pair(16, training=True)
    for embed in (quick, plain):
        for module in embed.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    near(quick(images(32, 32)), plain(images(32, 32)))
    near(
        torch.cat([b.flatten().double() for b in quick.buffers()]),
        torch.cat([b.flatten().double() for b in plain.buffers()]),
    )


def test_who_listens_or_changes_a_norm_gets_the_usual_way():
    x = images(32, 32)
    with torch.no_grad():
        heard, _ = pair(16, training=False)
        heard.blocks[0].layers[1].conv1.register_forward_hook(lambda *_: None)
        assert not heard.takes_parts(x)
        changed, plain = pair(16, training=False)
        for embed in (changed, plain):
            embed.blocks[1].norm = nn.GroupNorm(4, embed.blocks[0].width, dtype=x.dtype)
        assert not changed.takes_parts(x)
        near(changed(x), plain(x))
        assert not DenseNetEmbed(norm=True).eval().takes_parts(x.float())
        assert not pair(16, training=False)[0].takes_parts(x.float())


def test_frozen_weights_get_no_gradient_and_the_others_theirs():
    found = []
    for embed in pair(16, training=True):
        embed.stem.requires_grad_(False)
        embed.blocks[0].layers[2].requires_grad_(False)
        embed(images(32, 32)).square().sum().backward()
        found.append([p.grad for p in embed.parameters()])
    for quick, plain in zip(*found, strict=True):
        assert (quick is None) == (plain is None)
        if plain is not None:
            near(quick, plain)


def test_an_empty_batch_gives_no_tokens():
    embed = DenseNetEmbed(embed_dim=8).eval()
    with torch.no_grad():
        assert embed(torch.zeros(0, 3, 32, 32)).shape == (0, 8, 2, 2)
