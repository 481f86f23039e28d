"""Every kernel there is: what it stands for, where it runs, what it gains and where that was measured."""

from dataclasses import dataclass

from torch import nn

from ..models._backbone import Backbone
from .fused import Fused
from .modules.attention import FusedAttention
from .modules.dense_embed import FusedDenseNetEmbed
from .modules.dense_embed_cpu import DenseNetEmbedInParts
from .modules.depthwise import FusedDepthwiseConv
from .modules.gelu import FusedGelu
from .modules.glmix import FusedBlock, FusedConvMlp, FusedLocalConv
from .modules.nommer import HalfPrecisionSynergy
from .modules.patches import FusedPatchConv
from .modules.slots import FusedSlotMixer, UnpaddedSlots
from .modules.stem import FusedStem
from .workarounds import WindowAttentionByProducts

MODES = ("train", "infer")
RESERVED = ("auto", "off")  # words of the switch
H200, X86 = "benchmarks/speed/results/kernels/h200.md", "benchmarks/speed/results/kernels/x86.md"
TURNS = "benchmarks/speed/results/kernels/h200_turns.jsonl"
NOTES = "benchmarks/speed/results/notes_gpu.md"


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
            raise ValueError(f"a kernel is named {self.name!r}; use only letters, digits and _")
        for replacement in self.replacements:
            if "plain" not in vars(replacement) or not issubclass(replacement, replacement.plain):
                raise TypeError(f"{replacement.__name__} must name its plain class and be a subclass of it")


KERNELS: tuple[Kernel, ...] = (
    # Faults of PyTorch's compiler.
    Kernel(
        name="unpadded",
        does="products between a map and its slots that a compiler does not pad, since its code generation fails then",
        replacements=(UnpaddedSlots,),
        workaround=True,
    ),
    Kernel(
        name="window_bias",
        does="window attention by products in compiled training, where the fused kernel refuses the bias's layout",
        replacements=(WindowAttentionByProducts,),
        modes=("train",),
        workaround=True,
    ),
    # GLMix and GLNet.
    Kernel(
        name="slots",
        does="slots pooled by plain sums; clustering and dispatch by fused attention, rows of positions or kernels",
        replacements=(FusedSlotMixer,),
        gain="GLNet-4G training 1.16x by its forms and 1.06x by its kernels, GLNet-STL 1.05x by its pooling, H200",
        record=H200,
    ),
    Kernel(
        name="depthwise",
        does="depthwise convolutions with residual sum and GELU by a kernel, compiled",
        replacements=(FusedDepthwiseConv, FusedConvMlp, FusedLocalConv),
        gain="1.26x GLNet-4G training, H200",
        record=H200,
    ),
    Kernel(
        name="block",
        does="GLMix blocks: sums joined to norms, weights converted at once, bias gradients summed by readers",
        replacements=(FusedBlock,),
        gain="1.03x GLNet-4G training by its norms, H200",
        record=H200,
    ),
    # Any transformer.
    Kernel(
        name="attention",
        does="attention among few tokens by a kernel or products, in compiled training",
        replacements=(FusedAttention,),
        modes=("train",),
        gain="1.06x GLNet-STL training, H200",
        record=H200,
    ),
    Kernel(
        name="gelu",
        does="GELU by a shorter formula in half precision, compiled",
        replacements=(FusedGelu,),
        within=(Backbone,),
        gain="1.03x GLNet-STL training, H200",
        record=H200,
    ),
    # Pyramids.
    Kernel(
        name="patches",
        does="patch embeddings of a pyramid as products, in a model compiled whole",
        replacements=(FusedPatchConv,),
        modes=("infer",),
        gain="1.03x NomMer-T inference, H200",
        record=TURNS,
    ),
    # NomMer.
    Kernel(
        name="map_precision",
        does="maps converted to autocast's precision once, for the products of all contexts",
        replacements=(HalfPrecisionSynergy,),
        gain="1.14x NomMer-T inference together with maps as tokens, H200",
        record=NOTES,
    ),
    # SoT.
    Kernel(
        name="dense",
        does="the dense embedding as products of rows, pooled before its transitions and its stem's bias",
        replacements=(FusedDenseNetEmbed, FusedStem),
        gain="1.25x SoT-S training, 1.27x inference, H200",
        record=H200,
    ),
    Kernel(
        name="dense_cpu",
        does="the dense embedding a few images at a time",
        replacements=(DenseNetEmbedInParts,),
        devices=("cpu",),
        gain="1.6x SoT-T training, 2.7x inference, two x86 cores",
        record=X86,
    ),
)


def names() -> list[str]:
    """Return the kernels that can be switched, in the order in which they are applied."""
    return [kernel.name for kernel in KERNELS if not kernel.workaround]
