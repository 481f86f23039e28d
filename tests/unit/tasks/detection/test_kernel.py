"""The operator that chooses proposals keeps what torchvision's `nms` keeps, by its reference and by its kernel."""

import contextlib
import os

import pytest
import torch
from torch.library import opcheck
from torchvision.ops import nms

from saccade.tasks.detection import keep_triton


@pytest.fixture(params=["reference", "kernel"])
def device(request, monkeypatch):
    if request.param == "reference":
        return "cpu"
    if keep_triton.has_triton() and torch.cuda.is_available():
        return "cuda"
    if not keep_triton.has_triton() or os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU, or Triton and TRITON_INTERPRET=1")
    monkeypatch.setattr(torch.cuda, "device_of", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(keep_triton, "_keep_best", keep_triton.keep_by_kernel)
    return "cpu"


def test_the_operator_is_what_pytorch_expects_of_one():
    corner = torch.rand(2, 9, 2) * 50
    boxes = torch.cat([corner, corner + 30 * torch.rand(2, 9, 2)], dim=-1)
    opcheck(keep_triton._keep_best, (boxes, torch.rand(2, 9) > 0.1, 0.5))


@pytest.mark.parametrize("count", [1, 5, 37, 200])
def test_the_boxes_kept_are_those_of_torchvision(device, count):
    draws = torch.Generator().manual_seed(count)
    corner = torch.rand(3, count, 2, generator=draws) * 50
    boxes = torch.cat([corner, corner + torch.rand(3, count, 2, generator=draws) * 30], dim=-1).to(device)
    allowed = (torch.rand(3, count, generator=draws) > 0.1).to(device)
    kept = keep_triton.keep_best(boxes, allowed, overlap=0.5)
    for number in range(3):
        places = allowed[number].nonzero()[:, 0]
        want = torch.zeros(count, dtype=torch.bool, device=device)
        want[places[nms(boxes[number, places], -places.float(), 0.5)]] = True
        assert torch.equal(kept[number], want)


def test_levels_do_not_compete(device):
    draws = torch.Generator().manual_seed(0)
    levels = []
    for count in (40, 7, 1):
        corner = torch.rand(2, count, 2, generator=draws) * 20
        levels.append(torch.cat([corner, corner + torch.rand(2, count, 2, generator=draws) * 30], dim=-1).to(device))
    levels[0][0, 3, 2:] = levels[0][0, 3, :2]  # no area
    kept = keep_triton.keep_of_levels(levels, overlap=0.5)
    allowed = [((one[..., 2:] - one[..., :2]) >= 1e-2).all(-1) for one in levels]
    alone = [keep_triton.keep_best(one, there, overlap=0.5) for one, there in zip(levels, allowed, strict=True)]
    assert torch.equal(kept, torch.cat(alone, dim=1))
    assert not kept[0, 3]
