"""GLMix: convolution on a map beside attention among its slots, its ablations (table 6), and the block of GLNet.

The paper's "GLMix block" (figure 4) is `GLMix` here; `Block` is a block of GLNet (section 3.3), with a mixer inside.

Maps travel as tokens B, H * W, C with their grid: torch.compile takes a four-axis tensor beside a convolution for
B, C, H, W and would restride a map B, H, W, C for that, with a copy.
"""

from collections import OrderedDict
from typing import Any, Literal

from timm.layers import DropPath, LayerScale
from torch import Tensor, nn

from ..settings.values import require_choice
from .depthwise import DepthwiseConv
from .init import init_linear
from .slots import SlotMixer, self_attention
from .window import WindowAttention

Mixer = Literal["parallel", "local", "global", "local_global", "global_local"]
Local = Literal["conv", "window"]


class GLMix(nn.Module):
    """Mix a map locally at full resolution and globally through slots (figure 4).

    In a sequence the second branch takes the first one's output. The paper does not say where a global branch that
    comes second pools its slots; here it pools the first branch's output, as the block's input lies in another space.

    Args:
        dim: channels.
        num_heads: heads of the attention among slots, and of window attention.
        mixer: "parallel" adds the branches, as the paper does; "local_global" and "global_local" run one after the
            other, "local" and "global" leave the other one out (table 6).
        local: "conv" (figure 4) or "window" (W-MHSA of table 6, attention in windows; here they do not shift).
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

    def forward(self, x: Tensor, source: Tensor, grid: tuple[int, int]) -> Tensor:
        """Mix a map.

        Args:
            x: normalised map, B, H * W, C.
            source: map that pooled slots are averaged from, the input of `Block` (see `SlotMixer`), B, H * W, C.
            grid: H, W.
        """
        if self.mixer == "parallel":
            return self._mix_locally(x, grid) + self.global_branch(x, source, grid)
        if self.mixer == "global_local":
            return self._mix_locally(self.global_branch(x, source, grid), grid)
        if self.mixer == "local_global":
            x = self._mix_locally(x, grid)
            return self.global_branch(x, x, grid)
        return self._mix_locally(x, grid) if self.mixer == "local" else self.global_branch(x, source, grid)

    def _mix_locally(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.local_branch(x.unflatten(1, grid)).flatten(1, 2)


class MapAttention(nn.Module):
    """Full MHSA among positions, of stage 4 and of every other block of a hybrid stage 3 (section 3.3)."""

    def __init__(self, dim: int, *, num_heads: int) -> None:
        super().__init__()
        self.attn = self_attention(dim, num_heads)

    def forward(self, x: Tensor, source: Tensor, grid: tuple[int, int]) -> Tensor:  # noqa: ARG002
        """Return a map of the same shape, B, N, C; the other arguments are there to be called like `GLMix`."""
        return self.attn(x)


class Block(nn.Module):
    """A block of GLNet (section 3.3): position encoding, a spatial mixer and an FFN, all residual, on B, H * W, C.

    Args:
        dim: channels.
        mixer: takes the normalised map and the block's input.
        mlp_ratio: hidden width of the FFN over `dim` (e of table 2).
        pos_conv: residual 3x3 depthwise convolution in front of the mixer (section 3.3, design 3).
        conv_mlp: residual 3x3 depthwise convolution between the FFN's linear layers (section 3.3, design 5).
        layer_scale: initial factor of the mixer's and the FFN's residual; None leaves it out (the paper has none).
        drop_path: probability of dropping a residual.
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
            # The published block has linear layers in its FFN then, which it draws anew. The other blocks have 1x1
            # convolutions, which keep PyTorch's draw.
            init_linear(self.mlp.fc1)
            init_linear(self.mlp.fc2)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return a map of the same shape."""
        source = x  # slots are pooled from here, before position encoding and norm (see `SlotMixer`)
        if self.pos_conv is not None:
            x = x + self.pos_conv(x.unflatten(1, grid)).flatten(1, 2)
        x = x + self.drop_path(self.ls1(self.mixer(self.norm1(x), source, grid)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x), grid)))


class ConvMlp(nn.Module):
    """FFN: two linear layers around GELU, with a residual depthwise convolution in front of GELU if `conv`."""

    def __init__(self, dim: int, hidden: int, *, conv: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.depthwise = DepthwiseConv(hidden, 3) if conv else None
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return a map of the same shape, B, H * W, C."""
        x = self.fc1(x)
        if self.depthwise is not None:
            x = x + self.depthwise(x.unflatten(1, grid)).flatten(1, 2)
        return self.fc2(self.act(x))


class LocalConv(nn.Sequential):
    """A depthwise convolution between two pointwise layers (figure 4), without norm or activation, on B, H, W, C."""

    pointwise1: nn.Linear
    depthwise: DepthwiseConv
    pointwise2: nn.Linear

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__(
            OrderedDict(
                pointwise1=nn.Linear(dim, dim),
                depthwise=DepthwiseConv(dim, kernel_size),
                pointwise2=nn.Linear(dim, dim),
            )
        )


def local_window(dim: int, num_heads: int, window_size: int) -> WindowAttention:
    """Build window attention, initialised like the rest of the network."""
    attention = WindowAttention(dim, num_heads=num_heads, window_size=window_size)
    init_linear(attention.qkv)
    init_linear(attention.proj)
    return attention
