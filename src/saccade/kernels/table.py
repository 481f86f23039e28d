"""Every kernel there is: what it stands for, where it runs, what it gains and where that was measured."""

from dataclasses import dataclass

from torch import nn

from .fused import Fused
from .modules.nommer import HalfPrecisionSynergy
from .workarounds import WindowAttentionByProducts

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


KERNELS: tuple[Kernel, ...] = (
    Kernel(
        name="map_precision",
        does="NomMer's maps converted to autocast's precision once, for the products of all contexts",
        replacements=(HalfPrecisionSynergy,),
    ),
    Kernel(
        name="window_bias",
        does="window attention by products in compiled training, where the fused kernel refuses the bias's layout",
        replacements=(WindowAttentionByProducts,),
        modes=("train",),
        workaround=True,
    ),
)
