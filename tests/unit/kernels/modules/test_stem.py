import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.kernels.modules import stem as stems
from saccade.kernels.modules.stem import FusedStem, aligned, halves
from saccade.layers.token_embed import Stem
from saccade.layers.token_embed_ablations import TOKEN_EMBEDS


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    """Take calls on the CPU, as in training on a GPU."""
    monkeypatch.setattr(FusedStem, "takes", lambda *_: True)
    monkeypatch.setattr(stems, "trains_on_gpu", lambda _: torch.is_grad_enabled())


def swapped(stem: Stem) -> Stem:
    """Return a copy that is replaced."""
    made = copy.deepcopy(stem)
    made.__class__ = FusedStem
    return made


@pytest.mark.parametrize("kind", ["densenet", "nonlocal"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_bias_after_pooling_is_the_same_as_before_with_its_gradient(kind, compiled):
    torch.manual_seed(0)
    plain = TOKEN_EMBEDS[kind](embed_dim=32).stem.double()
    fused = swapped(plain)
    x = torch.randn(2, 3, 21, 34, dtype=torch.float64, requires_grad=True)
    call = torch.compile(fused, backend="aot_eager", fullgraph=True) if compiled else fused
    got, want = call(x), plain(x)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    gradients = [
        torch.autograd.grad((out * weight).sum(), [x, *m.parameters()]) for out, m in ((got, fused), (want, plain))
    ]
    torch.testing.assert_close(*gradients)


def test_a_stem_that_somebody_listens_to_runs_as_it_is():
    stem = swapped(TOKEN_EMBEDS["densenet"](embed_dim=32).stem)
    heard = []
    stem[0].register_forward_hook(lambda *_: heard.append(1))
    stem(torch.randn(1, 3, 16, 16))
    assert heard == [1]


def test_what_is_no_such_stem_is_refused():
    conv, pool = nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2, 1)
    assert FusedStem.refuses(Stem(conv, pool)) is None
    assert "bias" in FusedStem.refuses(Stem(nn.Conv2d(3, 4, 3, bias=False), pool))
    assert "other than max pooling" in FusedStem.refuses(Stem(conv, nn.AvgPool2d(2)))
    assert halves(pool)
    for other in (nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1, ceil_mode=True)):
        assert not halves(other)


@pytest.mark.parametrize("channels", [1, 3, 8, 11])
def test_images_and_kernels_with_channels_of_zeros_have_the_same_products(monkeypatch, channels):
    x, weight = torch.randn(2, channels, 9, 9).bfloat16(), torch.randn(4, channels, 3, 3)
    assert aligned(x, weight)[0] is x
    monkeypatch.setattr(stems, "compiles_for_gpu", lambda _: True)
    assert aligned(x, weight)[1] is weight  # a library's own gradients are as they were
    with torch.no_grad():
        more, kernels = aligned(x, weight)
        assert more.shape[1] == kernels.shape[1] == -(-channels // 8) * 8
        want = F.conv2d(x.double(), weight.double())
        torch.testing.assert_close(F.conv2d(more.double(), kernels.double()), want)
        assert aligned(x.float(), weight)[0].shape == x.shape
