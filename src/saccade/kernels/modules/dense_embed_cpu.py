"""SoT's dense embedding on the CPU, a few images at a time: their maps stay in the cache.

Where a transition is linear, it is applied behind the average pooling that follows it, to a quarter of the positions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...layers.padding import pad_to
from ...layers.token_embed import DenseNetEmbed
from .dense_parts import FusedEmbed, folded, stages

ROWS = 16384  # positions worked on at a time


class DenseNetEmbedInParts(FusedEmbed, DenseNetEmbed):
    """Stem and dense blocks a few images at a time, in full precision."""

    plain = DenseNetEmbed

    def takes(self, x: Tensor) -> bool:
        """Whether operators run one by one on the CPU in full precision."""
        return (
            type(x) is Tensor  # no tracer's stand-in
            and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()
            and not torch._C._are_functorch_transforms_active()
            and x.device.type == "cpu"
            and x.dtype == self.weight.dtype
            and x.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled("cpu")
            and len(x) > 0
        )

    def fused(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H, W."""
        x = in_parts(self.stem, pad_to(x, self.stride - 1))
        for block, transition in stages(self):
            if reads_batch(transition.norm):
                x = transition(in_parts(block, x))
            else:
                pooled = in_parts(nn.Sequential(block, transition.pool), x)
                weight, bias = folded(transition.norm, transition.conv)
                x = F.conv2d(pooled, weight[:, :, None, None], bias)
        return self.proj(x)


def reads_batch(norm: nn.Module) -> bool:
    """Whether a norm is more than a line in each channel's values: statistics of the batch, or an unknown class."""
    if type(norm) is nn.BatchNorm2d:
        return norm.training or norm.running_mean is None
    return type(norm) is not nn.Identity


def in_parts(run: nn.Module, x: Tensor) -> Tensor:
    """Run a module on maps, B, C, H, W, in groups of images of about ROWS positions, channels last."""
    count = max(1, ROWS // (x.shape[2] * x.shape[3]))
    return torch.cat([run(part.contiguous(memory_format=torch.channels_last)) for part in x.split(count)])
