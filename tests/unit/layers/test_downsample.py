"""Patches that tile a map."""

import pytest
import torch
import torch.nn.functional as F

from saccade.layers.downsample import PatchConv, overlapping_stem


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 3, 9, 10), (2, 3, 3, 9), (1, 3, 1, 1)])
def test_patches_are_a_convolution_of_their_stride_on_a_map_of_one_patch_at_least(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    conv, x = PatchConv(3, 4, patch=4), torch.randn(shape)
    missing = [max(0, 4 - side) for side in shape[2:]]
    want = F.conv2d(F.pad(x, (0, missing[1], 0, missing[0])), conv.weight, conv.bias, stride=4)
    assert torch.equal(conv(x), want)


def test_a_patch_without_an_overlapping_stem_is_refused() -> None:
    with pytest.raises(ValueError, match="patch=3 was given"):
        overlapping_stem(3, 8, patch=3)
