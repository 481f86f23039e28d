"""Every kernel there is: what it stands for, where it runs, what it gains and where that was measured."""

from dataclasses import dataclass

from torch import nn

from ..layers.token_embed import Stem
from .fused import Fused
from .modules.dense_embed import FusedDenseNetEmbed
from .modules.dense_embed_cpu import DenseNetEmbedInParts
from .modules.nommer import HalfPrecisionSynergy
from .modules.stem import FusedMaxPool, FusedStem
from .workarounds import WindowAttentionByProducts

MODES = ("train", "infer")
RESERVED = ("auto", "off")  # words of the switch


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

    def __post_init__(self) -> None:
        """Refuse a row that cannot be named or swapped."""
        if self.name in RESERVED or not self.name.isidentifier():
            raise ValueError(f"a kernel is called {self.name!r}; give it a name of letters, digits and _")
        for replacement in self.replacements:
            if "plain" not in vars(replacement) or not issubclass(replacement, replacement.plain):
                raise TypeError(f"{replacement.__name__} has to name its plain class and be a subclass of it")


SOT: tuple[Kernel, ...] = (
    Kernel(
        name="dense",
        does="SoT's dense blocks as products of rows, their transitions behind the pooling",
        replacements=(FusedDenseNetEmbed,),
        gain="with late_bias and max_pool: 1.25x SoT-S training, 1.27x inference, H200",
        record="benchmarks/results/kernels/h200.md",
    ),
    Kernel(
        name="late_bias",
        does="biases added behind a stem's max pooling instead of before it",
        replacements=(FusedStem,),
    ),
    Kernel(
        name="max_pool",
        does="a stem's max pooling by plain operators, in training compiled for a GPU",
        replacements=(FusedMaxPool,),
        modes=("train",),
        within=(Stem,),
    ),
    Kernel(
        name="dense_cpu",
        does="SoT's stem and dense blocks a few images at a time",
        replacements=(DenseNetEmbedInParts,),
        devices=("cpu",),
        gain="1.8x SoT-T training, two x86 cores",
    ),
)

NOMMER: tuple[Kernel, ...] = (
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

KERNELS: tuple[Kernel, ...] = (*SOT, *NOMMER)


def names() -> list[str]:
    """Return the kernels that can be switched, in the order in which they are applied."""
    return [kernel.name for kernel in KERNELS if not kernel.workaround]
