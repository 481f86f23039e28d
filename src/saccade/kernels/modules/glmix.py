"""GLMix blocks on a GPU: each sum and the norm behind it by one kernel, weights converted once a block.

What is shared lives in a `Run` for as long as the call. Each step looks at the modules inside: those that are plain,
since their kernel is switched off, run as they are.
"""

from typing import Any

from torch import Tensor, nn

from ...layers.glmix import Block, ConvMlp, GLMix, LocalConv, MapAttention
from ...layers.slots import SlotMixer
from ..compiling import compiles_for_gpu
from ..fused import Fused
from ..ops import norm
from ..ops.norm import Joined
from ..precision import Run, as_products_read
from .attention import attend, converted, last_of
from .depthwise import FusedDepthwiseConv
from .gelu import FusedGelu
from .slots import FusedSlotMixer, UnpaddedSlots


class FusedBlock(Fused, Block):
    """A block whose steps share a `Run`."""

    plain = Block

    def takes(self, x: Tensor, grid: tuple[int, int]) -> bool:  # noqa: ARG002
        """Whether a call is compiled for a GPU."""
        return compiles_for_gpu(x)

    def fused(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return a map of the same shape."""
        run, source, mixer = Run(linear_layers(self), x), x, self.mixer
        if self.pos_conv is not None:
            x = encode_position(self.pos_conv, x, grid)
        if not norm.serves(x, self.norm1, self.norm2):
            mixed = sum_of(mix(run, mixer, as_products_read(self.norm1(x)), source, grid))
            x = x + self.drop_path(self.ls1(mixed))
            return x + self.drop_path(self.ls2(transform(run, self.mlp, self.norm2(x), grid)))
        bare = self._is_bare()
        x, y, *again = join(self.norm1, x, twice=bare and getattr(mixer, "mixer", "") == "parallel")
        before = run.cut_off(last_layer(run, mixer, y)) if bare else None
        branches = mix(run, mixer, y, source, grid, *again)
        if not bare:
            branches = (self.drop_path(self.ls1(sum_of(branches))),)
        after = run.cut_off(self.mlp.fc2) if bare else None
        x, y = join(self.norm2, x, *branches, biases=(before, after))
        return x + self.drop_path(self.ls2(transform(run, self.mlp, y, grid)))

    def _is_bare(self) -> bool:
        """Whether what the two parts return is added as it is."""
        own = type(self.mixer) in (GLMix, MapAttention) and type(self.mlp) in MLPS
        return own and all(type(step) is nn.Identity for step in (self.ls1, self.ls2, self.drop_path))


class FusedConvMlp(Fused, ConvMlp):
    """A feed-forward part whose convolution adds the map and applies GELU."""

    plain = ConvMlp

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        """Why this module cannot be replaced."""
        return "it has no convolution" if module.depthwise is None else None

    def takes(self, x: Tensor, grid: tuple[int, int]) -> bool:  # noqa: ARG002
        """Whether the convolution takes a map."""
        return joins(self.depthwise, x)

    def fused(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return a map of the same shape, B, H * W, C."""
        return transform(Run(), self, x, grid)


class FusedLocalConv(Fused, LocalConv):
    """A local branch whose convolution sums the gradient of the bias before it."""

    plain = LocalConv

    def takes(self, x: Tensor) -> bool:
        """Whether the convolution takes a map."""
        return len(self) == 3 and joins(self.depthwise, x)

    def fused(self, x: Tensor) -> Tensor:
        """Return a map of the same shape, B, H, W, C."""
        grid = (x.shape[1], x.shape[2])
        return mix_locally(Run(), self, x.flatten(1, 2), grid).unflatten(1, grid)


# Modules that a block runs itself, plain or replaced.
LOCALS, MLPS = (LocalConv, FusedLocalConv), (ConvMlp, FusedConvMlp)
SLOTS = (SlotMixer, UnpaddedSlots, FusedSlotMixer)


def linear_layers(block: Any) -> list[nn.Linear]:
    """Return the layers of a block that read the weights of its run."""
    local: Any = getattr(block.mixer, "local_branch", None)
    attention: Any = getattr(getattr(block.mixer, "global_branch", block.mixer), "attn", None)
    parts: list[Any] = [part for part in (local, block.mlp) if type(part) in (*LOCALS, *MLPS)]
    parts += [attention] if converted(attention) else []
    return [layer for part in parts for layer in part.children() if type(layer) is nn.Linear]


def encode_position(conv: Any, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Add a depthwise convolution of a map B, H * W, C to it."""
    if type(conv) is FusedDepthwiseConv and conv.joins(x):
        return conv.joined(x, grid, residual=True)
    return x + conv(x.unflatten(1, grid)).flatten(1, 2)


def join(
    layer: Any,
    x: Tensor,
    *branches: Tensor,
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    twice: bool = False,
) -> tuple[Tensor, ...]:
    """Return a map with its branches added, and the norm of that, once or twice; see `Joined`."""
    first, second, *_ = *(branch.to(x.dtype) for branch in branches), None, None
    return Joined.apply(x, first, second, layer.weight, layer.bias, *biases, layer.eps, twice)


def mix(
    run: Run, mixer: Any, x: Tensor, source: Tensor, grid: tuple[int, int], again: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return what adds up to the mixed map; `again` is the normalised map for the second branch."""
    if type(mixer) is MapAttention:
        return (attend(run, mixer.attn, x),)
    if type(mixer) is not GLMix:
        return (mixer(x, source, grid),)
    if mixer.mixer == "parallel":
        again = x if again is None else again
        return mix_locally(run, mixer.local_branch, x, grid), mix_globally(
            run, mixer.global_branch, again, source, grid
        )
    if mixer.mixer != "local":
        if mixer.mixer == "local_global":
            x = source = mix_locally(run, mixer.local_branch, x, grid)
        x = mix_globally(run, mixer.global_branch, x, source, grid)
    return (x if mixer.mixer in ("global", "local_global") else mix_locally(run, mixer.local_branch, x, grid),)


def last_layer(run: Run, mixer: Any, x: Tensor) -> nn.Module | None:
    """Return the linear layer whose output the mixed map is, or is added to, if it reads the weights of a run."""
    if type(mixer) is MapAttention:
        return last_of(run, mixer.attn, x)
    local: Any = getattr(mixer, "local_branch", None)
    known = type(local) in LOCALS and len(local) == 3
    return local.pointwise2 if known and mixer.mixer != "local_global" else None


def mix_locally(run: Run, local: Any, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return what the local branch makes of a map, B, H * W, C."""
    if type(local) not in LOCALS or len(local) != 3:
        return local(x.unflatten(1, grid)).flatten(1, 2)
    if joins(local.depthwise, x):
        before = run.cut_off(local.pointwise1)
        x = local.depthwise.joined(run.linear(local.pointwise1, x), grid, before=before)
    else:
        x = local.depthwise(run.linear(local.pointwise1, x).unflatten(1, grid)).flatten(1, 2)
    return run.linear(local.pointwise2, x)


def mix_globally(run: Run, mixer: Any, x: Tensor, source: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return what the global branch makes of a map, as `SlotMixer.forward` does."""
    if type(mixer) not in SLOTS:
        return mixer(x, source, grid)
    slots, dispatch = mixer.cluster(mixer.initial_slots(source, grid), x)
    gathers = isinstance(mixer, FusedSlotMixer) and mixer.gathers(slots, x)
    before = run.cut_off(last_of(run, mixer.attn, slots)) if gathers else None
    slots = attend(run, mixer.attn, slots)
    return dispatch(slots) if before is None else dispatch(slots, before)


def transform(run: Run, mlp: Any, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return what the feed-forward part makes of a map."""
    if type(mlp) not in MLPS:
        return mlp(x, grid)
    exact = type(mlp.act) in (nn.GELU, FusedGelu) and mlp.act.approximate == "none"
    if exact and joins(mlp.depthwise, x):
        before = run.cut_off(mlp.fc1)
        hidden = mlp.depthwise.joined(run.linear(mlp.fc1, x), grid, residual=True, gelu=True, before=before)
        return run.linear(mlp.fc2, hidden)
    hidden = run.linear(mlp.fc1, x)
    if mlp.depthwise is not None:
        hidden = hidden + mlp.depthwise(hidden.unflatten(1, grid)).flatten(1, 2)
    return run.linear(mlp.fc2, mlp.act(hidden))


def joins(conv: Any, x: Tensor) -> bool:
    """Whether a convolution takes what a linear layer makes of a map, by its kernel."""
    return type(conv) is FusedDepthwiseConv and conv.joins(as_products_read(x))


def sum_of(branches: tuple[Tensor, ...]) -> Tensor:
    """Return the sum of one branch or two."""
    return branches[0] if len(branches) == 1 else branches[0] + branches[1]
