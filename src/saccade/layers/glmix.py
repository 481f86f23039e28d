"""GLMix: convolution on a map beside attention on its slots, what it was compared with, and the block around it.

Maps come as tokens B, N, C with their grid here, as they lie in a channels-last image. A compiler takes whatever has
four axes beside a convolution for an image with channels second, and would lay B, H, W, C out as B, W, C, H.
"""

from collections import OrderedDict
from typing import Any, Literal

from timm.layers import DropPath, LayerScale
from torch import Tensor, nn

from ..ranges import require_choice
from . import halves, norm_triton
from .activation import Gelu, activate
from .attention import dues_of, last_of
from .depthwise import DepthwiseConv
from .init import init_linear
from .linear import Linear, bias_left_to_reader, without_gradient_of_bias
from .numerics import as_products_read
from .parts import Due, close_ports, may_open_ports, open_ports, ports_for
from .reuse import add, unheard
from .slots import SlotMixer, self_attention
from .switch import on
from .window import WindowAttention

Mixer = Literal["parallel", "local", "global", "local_global", "global_local"]
Local = Literal["conv", "window"]


class GLMix(nn.Module):
    """Mix a map locally at full resolution and globally through slots.

    In a sequence the second branch takes the first one's output; a global branch that comes second pools its slots from
    there too, since the block's input no longer lies in the same space.

    Args:
        dim: channels.
        num_heads: heads of the attention among slots, and of window attention.
        mixer: "parallel" adds the branches, "local_global" and "global_local" run one after the other, "local" and
            "global" leave the other one out.
        local: "conv" (pointwise, depthwise, pointwise) or "window" (attention in windows that do not shift).
        kernel_size: side of the depthwise convolution, odd.
        window_size: side of a window.
        slot_options: see `SlotMixer`.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        mixer: Mixer = "parallel",
        local: Local = "conv",
        kernel_size: int = 5,
        window_size: int = 7,
        **slot_options: Any,
    ) -> None:
        super().__init__()
        require_choice("mixer", mixer, Mixer)
        require_choice("local", local, Local)
        self.mixer = mixer
        if mixer != "global":
            self.local_branch = (
                LocalConv(dim, kernel_size) if local == "conv" else local_window(dim, num_heads, window_size)
            )
        if mixer != "local":
            self.global_branch = SlotMixer(dim, num_heads=num_heads, **slot_options)

    @property
    def last(self) -> nn.Module | None:
        """The linear layer whose output the result is, or is added to."""
        local = getattr(self, "local_branch", None)
        return local.pointwise2 if isinstance(local, LocalConv) and self.mixer != "local_global" else None

    def forward(self, x: Tensor, source: Tensor, grid: tuple[int, int]) -> Tensor:
        """Mix a map.

        Args:
            x: normalised map, B, H * W, C.
            source: map that pooled slots are averaged from, the block's input, B, H * W, C.
            grid: H, W.
        """
        local, *rest = self.branches(x, source, grid)
        return add(local, rest[0], self.global_branch) if rest else local

    def branches(
        self, x: Tensor, source: Tensor, grid: tuple[int, int], again: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return what adds up to the mixed map; `again` is the normalised map for the second branch."""
        if self.mixer == "parallel":
            return self._mix_locally(x, grid), self.global_branch(x if again is None else again, source, grid)
        if self.mixer == "global_local":
            return (self._mix_locally(self.global_branch(x, source, grid), grid),)
        if self.mixer == "local_global":
            x = self._mix_locally(x, grid)
            return (self.global_branch(x, x, grid),)
        return (self._mix_locally(x, grid) if self.mixer == "local" else self.global_branch(x, source, grid),)

    def dues(self, x: Tensor, grid: tuple[int, int]) -> list[Due]:
        """Return what gets its gradients in parts where a map is mixed."""
        local, slots = (getattr(self, name, None) for name in ("local_branch", "global_branch"))
        found = local.dues(x, grid) if type(local) is LocalConv else []
        return found + slots.dues(x) if type(slots) is SlotMixer else found

    def _mix_locally(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.local_branch(x.unflatten(1, grid)).flatten(1, 2)


class MapAttention(nn.Module):
    """Full multi-head attention among the positions of a map."""

    def __init__(self, dim: int, *, num_heads: int) -> None:
        super().__init__()
        self.attn = self_attention(dim, num_heads)

    @property
    def last(self) -> nn.Module | None:
        """The linear layer whose output the result is."""
        return last_of(self.attn)

    def forward(self, x: Tensor, source: Tensor, grid: tuple[int, int]) -> Tensor:  # noqa: ARG002
        """Return a map of the same shape, B, N, C; the other arguments are there to be called like `GLMix`."""
        return self.attn(x)

    def branches(self, x: Tensor, source: Tensor, grid: tuple[int, int]) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Return what adds up to the mixed map, see `GLMix`."""
        return (self.attn(x),)

    def dues(self, x: Tensor, grid: tuple[int, int]) -> list[Due]:  # noqa: ARG002
        """Return what gets its gradients in parts, see `GLMix`."""
        return dues_of(self.attn, x, x.shape[1])


class Block(nn.Module):
    """Position encoding, a spatial mixer and a feed-forward part, all residual, on B, H * W, C.

    Args:
        dim: channels.
        mixer: takes the normalised map and the block's input.
        mlp_ratio: hidden width of the feed-forward part, in widths.
        pos_conv: encode position by a depthwise convolution.
        conv_mlp: convolve inside the feed-forward part.
        layer_scale: initial factor of both branches; None leaves it out.
        drop_path: probability of leaving out a branch.
    """

    def __init__(
        self,
        dim: int,
        mixer: nn.Module,
        *,
        mlp_ratio: float,
        pos_conv: bool = False,
        conv_mlp: bool = False,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.pos_conv = DepthwiseConv(dim, 3) if pos_conv else None
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.mixer = mixer
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = ConvMlp(dim, int(dim * mlp_ratio), conv=conv_mlp)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        if isinstance(mixer, MapAttention) and not pos_conv and not conv_mlp:
            # The published block works on tokens then and has linear layers where the others have 1x1 convolutions.
            init_linear(self.mlp.fc1)
            init_linear(self.mlp.fc2)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return a map of the same shape."""
        if not (may_open_ports() and norm_triton.serves(x, self.norm1, self.norm2)):
            return self._run(x, grid)
        open_ports(self._dues(x, grid))
        x = self._run(x, grid)
        close_ports()
        return x

    def _run(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        source = x
        if self.pos_conv is not None:
            joins = self.pos_conv.joins(x)
            x = self.pos_conv.joined(x, grid) if joins else x + self.pos_conv(x.unflatten(1, grid)).flatten(1, 2)
        if norm_triton.serves(x, self.norm1, self.norm2):
            return self._joined(x, source, grid)
        mixed = self.mixer(as_products_read(self.norm1(x)), source, grid)
        x = add(x, self.drop_path(self.ls1(mixed)), self.mixer, self.ls1, self.drop_path)
        return add(x, self.drop_path(self.ls2(self.mlp(self.norm2(x), grid))), self.mlp, self.ls2, self.drop_path)

    def _joined(self, x: Tensor, source: Tensor, grid: tuple[int, int]) -> Tensor:
        """Do what comes after the encoding of position, each norm and the sum before it by one kernel."""
        mixer: Any = self.mixer
        if self._bare():
            x, *normed = self._norm(self.norm1, x, twice=type(mixer) is GLMix and mixer.mixer == "parallel")
            biases = halves.cut_off(mixer.last), halves.cut_off(self.mlp.fc2)
            x, normed = self._norm(self.norm2, x, *mixer.branches(normed[0], source, grid, *normed[1:]), biases=biases)
        else:
            x, normed = self._norm(self.norm1, x)
            x, normed = self._norm(self.norm2, x, self.drop_path(self.ls1(mixer(normed, source, grid))))
        return x + self.drop_path(self.ls2(self.mlp(normed, grid)))

    def _bare(self) -> bool:
        """Tell whether what the two parts return is added as it is, and nobody listens to it."""
        steps = [self.ls1, self.ls2, self.drop_path]
        own = type(self.mixer) in (GLMix, MapAttention) and type(self.mlp) is ConvMlp
        return own and all(type(step) is nn.Identity for step in steps) and unheard(*steps, self.mixer, self.mlp)

    def _dues(self, x: Tensor, grid: tuple[int, int]) -> list[Due]:
        """Return what gets its gradients in parts where the kernels take a map."""
        mixer: Any = self.mixer
        lasts = (mixer.last, self.mlp.fc2) if self._bare() else (None, None)
        biases = (halves.can_be_cut_off(last) for last in lasts)
        found = [norm_triton.due(x, self.norm1), norm_triton.due(x, self.norm2, *biases)]
        found += self.pos_conv.dues(x, grid) if self.pos_conv is not None and self.pos_conv.joins(x) else []
        found += mixer.dues(x, grid) if type(mixer) in (GLMix, MapAttention) else []
        return found + (self.mlp.dues(x, grid) if type(self.mlp) is ConvMlp else [])

    @staticmethod
    def _norm(
        norm: Any,
        x: Tensor,
        *branches: Tensor,
        biases: tuple[Tensor | None, Tensor | None] = (None, None),
        twice: bool = False,
    ) -> Any:
        first, second, *_ = *(branch.to(x.dtype) for branch in branches), None, None
        port = ports_for([norm_triton.due(x, norm, *biases)])
        return norm_triton.Joined.apply(x, first, second, norm.weight, norm.bias, *biases, norm.eps, twice, *port)


class ConvMlp(nn.Module):
    """Two linear layers around GELU, with a residual depthwise convolution on the hidden map if asked."""

    def __init__(self, dim: int, hidden: int, *, conv: bool) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden)
        self.depthwise = DepthwiseConv(hidden, 3) if conv else None
        self.act = Gelu()
        self.fc2 = Linear(hidden, dim)

    def dues(self, x: Tensor, grid: tuple[int, int]) -> list[Due]:
        """Return what gets its gradients in parts where a map is transformed."""
        conv = self._joined(x)
        return [] if conv is None else conv.dues(x, grid, bias_left_to_reader(self.fc1))

    def _joined(self, x: Tensor) -> DepthwiseConv | None:
        """Return the convolution if it applies GELU too."""
        near = self.depthwise if on("depthwise") and type(self.act) is Gelu else None
        return near if near is not None and near.joins(as_products_read(x)) else None

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return a map of the same shape, B, H * W, C."""
        if (conv := self._joined(x)) is not None:
            hidden, bias = without_gradient_of_bias(self.fc1, x)
            return self.fc2(conv.joined(hidden, grid, gelu=True, before=bias))
        hidden = self.fc1(x)
        makers: list[nn.Module] = [self.fc1]
        if self.depthwise is not None:
            near = self.depthwise(hidden.unflatten(1, grid)).flatten(1, 2)
            hidden, makers = add(hidden, near, self.depthwise), [self.depthwise]
        return self.fc2(activate(self.act, hidden, x, *makers))


class LocalConv(nn.Sequential):
    """A depthwise convolution between two pointwise layers, without norm or activation, on B, H, W, C."""

    pointwise1: Linear
    depthwise: DepthwiseConv
    pointwise2: Linear

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__(
            OrderedDict(
                pointwise1=Linear(dim, dim),
                depthwise=DepthwiseConv(dim, kernel_size),
                pointwise2=Linear(dim, dim),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape."""
        if not self._joins(x):
            return super().forward(x)
        grid = (x.shape[1], x.shape[2])
        hidden, bias = without_gradient_of_bias(self.pointwise1, x.flatten(1, 2))
        near = self.depthwise.joined(hidden, grid, residual=False, before=bias)
        return self.pointwise2(near).unflatten(1, grid)

    def _joins(self, x: Tensor) -> bool:
        return on("depthwise") and len(self) == 3 and self.depthwise.joins(as_products_read(x)) and unheard(self)

    def dues(self, x: Tensor, grid: tuple[int, int]) -> list[Due]:
        """Return what gets its gradients in parts where a map is mixed."""
        return self.depthwise.dues(x, grid, bias_left_to_reader(self.pointwise1)) if self._joins(x) else []


def local_window(dim: int, num_heads: int, window_size: int) -> WindowAttention:
    """Build window attention, initialised like the rest of the network."""
    attention = WindowAttention(dim, num_heads=num_heads, window_size=window_size)
    init_linear(attention.qkv)
    init_linear(attention.proj)
    return attention
