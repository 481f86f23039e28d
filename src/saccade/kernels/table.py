"""Every kernel there is: what it stands for, where it runs, what it gains and where that was measured."""

from dataclasses import dataclass

from torch import nn

from ..models._backbone import Backbone
from .fused import Fused
from .modules.attention import FusedAttention
from .modules.depthwise import FusedDepthwiseConv
from .modules.gelu import FusedGelu
from .modules.glmix import FusedBlock, FusedConvMlp, FusedLocalConv
from .modules.slots import (
    FormedGatheredSlots,
    FormedSlots,
    FusedSlotMixer,
    GatheredSlots,
    PooledFormedSlots,
    PooledGatheredSlots,
    PooledSlots,
    UnpaddedSlots,
)

MODES = ("train", "infer")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A row of the table."""

    name: str  # as `--kernels` and SACCADE_KERNELS take it
    does: str  # in a line
    replacements: tuple[type[Fused], ...]  # of the plain classes that they name
    devices: tuple[str, ...] = ("cuda",)
    modes: tuple[str, ...] = MODES
    triton: bool = False  # whether Triton has to be installed
    within: tuple[type[nn.Module], ...] = ()  # modules of these classes alone hold what is replaced; empty: any
    workaround: bool = False  # for a fault of a compiler: applied even where kernels are off
    gain: str = ""  # e.g. "1.06x GLNet-STL training, H200"
    record: str = ""  # file that the gain was printed to


RECORD = "benchmarks/results/kernels/h200.md"
KERNELS: tuple[Kernel, ...] = (
    Kernel(
        name="unpadded",
        does="products between a map and its slots that a compiler does not pad, since its code generation fails then",
        replacements=(UnpaddedSlots,),
        workaround=True,
    ),
    Kernel(
        name="pool",
        does="slots pooled as plain sums or products instead of by adaptive pooling",
        replacements=(PooledSlots,),
        gain="1.05x GLNet-STL training, H200",
        record=RECORD,
    ),
    Kernel(
        name="cluster_forms",
        does="clustering and dispatch by fused attention, or by rows of positions",
        replacements=(FormedSlots, PooledFormedSlots),
        gain="1.16x GLNet-4G training, H200",
        record=RECORD,
    ),
    Kernel(
        name="cluster",
        does="clustering and dispatch by kernels, in compiled training",
        replacements=(GatheredSlots, PooledGatheredSlots, FormedGatheredSlots, FusedSlotMixer),
        modes=("train",),
        triton=True,
        gain="1.06x GLNet-4G training, H200",
        record=RECORD,
    ),
    Kernel(
        name="attention",
        does="attention among few tokens by a kernel or products, in compiled training",
        replacements=(FusedAttention,),
        modes=("train",),
        gain="1.06x GLNet-STL training, H200",
        record=RECORD,
    ),
    Kernel(
        name="depthwise",
        does="depthwise convolutions with residual sum and GELU by a kernel, compiled",
        replacements=(FusedDepthwiseConv, FusedConvMlp, FusedLocalConv),
        gain="1.26x GLNet-4G training, H200",
        record=RECORD,
    ),
    Kernel(
        name="gelu",
        does="GELU by a shorter formula in half precision, compiled",
        replacements=(FusedGelu,),
        within=(Backbone,),
        gain="1.03x GLNet-STL training, H200",
        record=RECORD,
    ),
    Kernel(
        name="block",
        does="GLMix blocks: sums joined to norms, weights converted at once, bias gradients summed by readers",
        replacements=(FusedBlock,),
        gain="1.03x GLNet-4G training, H200",
        record=RECORD,
    ),
)
