import copy
import importlib

import pytest
import torch
from torch import nn

from saccade.kernels.modules.nommer import HalfPrecisionSynergy
from saccade.layers.nominate import Synergy

GRID = (5, 6)


def synergy(prefix: int = 0) -> Synergy:
    torch.manual_seed(0)
    return Synergy(8, num_heads=2, window_size=3, dct_size=4, cnn_reduction=2, prefix=prefix).eval()


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tensors pretend to lie on a GPU, in bfloat16's autocast."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)


@pytest.mark.parametrize("prefix", [0, 1])
def test_candidates_read_the_map_in_the_precision_of_autocast(prefix: int, on_a_gpu: None) -> None:
    mixer = synergy(prefix).bfloat16()
    x = torch.randn(2, prefix + 30, 8)
    want = Synergy.forward(mixer, x.bfloat16(), GRID)
    mixer.__class__ = HalfPrecisionSynergy
    assert torch.equal(mixer(x, GRID), want)


def test_without_autocast_or_a_gpu_the_map_is_left_as_it_is() -> None:
    mixer, x = synergy(), torch.randn(2, 30, 8)
    want = mixer(x, GRID)
    mixer.__class__ = HalfPrecisionSynergy
    assert not mixer.takes(x, GRID)
    assert torch.equal(mixer(x, GRID), want)


def test_mixers_of_a_model_are_swapped_on_a_gpu_in_both_modes_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("saccade.kernels.apply")
    asked = module.unavailable
    monkeypatch.setattr(module, "unavailable", lambda kernel, _, mode: asked(kernel, "cuda", mode))
    model = nn.Sequential(synergy(), nn.Identity())
    for mode in module.MODES:
        handle = module.apply(model, mode, "map_precision")
        assert type(copy.deepcopy(model)[0]) is HalfPrecisionSynergy
        assert "map_precision" in handle.names
        handle.undo()
        assert type(model[0]) is Synergy
