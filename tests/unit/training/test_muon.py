from functools import partial

import pytest
import timm.optim
import timm.optim.muon
import torch
from torch import nn

from saccade.training.muon import Muon

SHAPES = [(8, 24), (24, 8), (8, 24), (12, 3, 2, 2), (12, 12), (16, 1, 3, 3), (8,), (), (1, 5, 8)]


def trained(optimizer, *, steps=4, resume_at=None):
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    groups = [{"params": weights[::2], "weight_decay": 0.1}, {"params": weights[1::2], "lr": 0.02}]
    made = optimizer(groups, lr=0.01, momentum=0.9)
    for step in range(steps):
        if step == resume_at:
            kept, made = made.state_dict(), optimizer(groups, lr=0.01, momentum=0.9)
            made.load_state_dict(kept)
        for weight in weights[: -1 if step == 1 else None]:
            weight.grad = torch.randn(weight.shape)
        made.step()
        made.zero_grad()
    return weights, made


@pytest.mark.parametrize("nesterov", [False, True])
def test_matrices_turned_together_move_as_one_by_one(monkeypatch, nesterov):
    exact = partial(timm.optim.muon.zeropower_via_newtonschulz, dtype=torch.float32)
    monkeypatch.setattr(timm.optim.muon, "zeropower_via_newtonschulz", exact)
    made = (partial(kind, nesterov=nesterov) for kind in (Muon, timm.optim.Muon))
    (ours, optimizer), (theirs, single) = map(trained, made)
    for a, b in zip(ours, theirs, strict=True):
        if optimizer.state[a]["use_muon"] or not nesterov:  # timm moves the others by NAdamW then
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    plain = trained(partial(Muon, nesterov=not nesterov))[0]
    assert not torch.allclose(plain[0], ours[0], rtol=0, atol=1e-3)
    kept, want = (made.state_dict()["state"] for made in (optimizer, single))
    assert {k: set(v) for k, v in kept.items()} == {k: set(v) for k, v in want.items()}


def test_a_resumed_run_ends_with_the_same_bits():
    straight, resumed = (trained(Muon, resume_at=at)[0] for at in (None, 2))
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


def test_a_closure_is_called_with_gradients():
    weight = nn.Parameter(torch.ones(4, 4))
    optimizer = Muon([weight], lr=0.1)

    def closure():
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(16)
    assert not torch.equal(weight, torch.ones(4, 4))
