"""Token embeddings of SoT: a small convolutional pyramid, or one linear patch projection, to a map of tokens."""

from collections.abc import Callable
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn

from .dense_rows import folded, pieces_by_rows, pooled_transition, track
from .dense_stage import as_map, pooled_pieces, rows
from .dense_stem import Stem, stem
from .dense_training import Pieces
from .exporting import is_exporting
from .reuse import eager, unheard
from .stem import pad_to, pool_before_bias
from .switch import on

STEM = 64  # the block widths below are the published ones and follow from it
NORMS = (nn.BatchNorm2d, nn.Identity)  # of transitions; nothing is left of one that was folded into its convolution


class TokenEmbed(nn.Module):
    """Stem, blocks that halve the map, 1x1 projection to the token width.

    Args:
        blocks: what stands between stem and projection.
        width: channels the blocks return.
        in_chans: image channels.
        embed_dim: token width.
        stride: image pixels a token.
    """

    def __init__(self, blocks: list[nn.Module], width: int, *, in_chans: int, embed_dim: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.stem = nn.Sequential(nn.Conv2d(in_chans, STEM, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1))
        self.blocks = nn.Sequential(*blocks)
        self.proj = nn.Conv2d(width, embed_dim, 1)

    @property
    def weight(self) -> Tensor:
        """The last projection's; hosts look at it to tell the precision."""
        return self.proj.weight

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the token grid for an image size: every halving rounds up."""
        return -(-height // self.stride), -(-width // self.stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H, W."""
        on_gpu = type(x) is Tensor and x.is_cuda  # a tracer's stand-in cannot say
        return self.proj(self.blocks(pool_before_bias(self.stem, x) if on_gpu else self.stem(x)))


def halvings(stride: int) -> list[bool]:
    """Tell which of the three blocks halve the map; the stem has halved it once.

    All do at stride 16; at 8 the last does not (published for 112-pixel images), at 4 the last two do not (published
    for Swin's finer grid).
    """
    if stride not in (4, 8, 16):
        raise ValueError(f"stride={stride} was asked of a convolutional token embedding; allowed are 4, 8 and 16")
    return [stride >= 4, stride >= 8, stride >= 16]


@register_notrace_module  # how it goes depends on what it is given
class DenseNetEmbed(TokenEmbed):
    """Three dense blocks with pooled transitions; the embedding of every published SoT.

    Args:
        in_chans: image channels.
        embed_dim: token width.
        stride: image pixels a token; 4, 8 or 16.
        norm: batch norm in front of each ReLU inside the dense layers. The published code leaves it to the version of
            timm: without in the pinned one (default), with from timm 0.6 on.
    """

    compiles_whole: ClassVar[bool] = True  # its layers' weights are read and they are not called on a GPU

    def __init__(self, *, in_chans: int = 3, embed_dim: int = 240, stride: int = 16, norm: bool = False) -> None:
        blocks: list[nn.Module] = []
        width = STEM
        for halve in halvings(stride):
            block = DenseBlock(width, norm=norm)
            blocks += [block, Transition(block.width, 128, halve=halve)]
            width = 128
        super().__init__(blocks, width, in_chans=in_chans, embed_dim=embed_dim, stride=stride)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the token grid: the stem's pooling rounds up, the transitions' round down, none below one."""
        pool = self.stride // 2
        return max(1, (height + 1) // 2 // pool), max(1, (width + 1) // 2 // pool)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H, W."""
        x = pad_to(x, self.stride - 1)
        if self.takes_rows(x):
            x = pool_before_bias(self.stem, x)
            for block, transition in self.stages:
                x = transition.behind(block, x)
            return self.proj(x)
        if not self.takes_parts(x):
            return super().forward(x)
        conv = cast(nn.Conv2d, self.stem[0])
        x = (Stem.apply if torch.is_grad_enabled() else stem)(x, conv.weight, cast(Tensor, conv.bias))
        for block, transition in self.stages:
            x = transition.after(block, x)
        return self.proj(x)

    @property
    def stages(self) -> list[tuple["DenseBlock", "Transition"]]:
        """The blocks, each with its transition."""
        return list(zip(self.blocks[::2], self.blocks[1::2], strict=True))  # type: ignore[arg-type]

    def takes_rows(self, x: Tensor) -> bool:
        """Tell whether convolutions become products of rows: on a GPU, with no norms in blocks and nobody listening."""
        if not on("dense") or type(x) is not Tensor or not x.is_cuda or not len(x):  # a tracer's stand-in cannot say
            return False
        if is_exporting() or torch.jit.is_tracing() or any(block.norm for block, _ in self.stages):
            return False
        return unheard(self.stem, self.blocks)

    def takes_parts(self, x: Tensor) -> bool:
        """Tell whether a few images at a time go a quicker way: on the CPU in full precision, with nobody listening."""
        return (
            on("dense")
            and eager(x)
            and x.device.type == "cpu"
            and x.dtype == self.weight.dtype
            and x.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled("cpu")
            and len(x) > 0
            and all(
                block.norm is False and type(norm := transition.norm) in NORMS and getattr(norm, "affine", True)
                for block, transition in self.stages
            )
            and unheard(self.stem, self.blocks)
        )


class DenseBlock(nn.Module):
    """Layers that each read everything before them and add `growth` channels.

    Without norms the first convolution of a layer acts on ReLU(concatenation), which is a sum over the pieces; each
    piece then goes once through one convolution for all the layers after it, and no concatenation is kept for the
    backward pass but the block's output.
    """

    def __init__(self, width: int, *, depth: int = 6, growth: int = 16, norm: bool = False) -> None:
        super().__init__()
        self.widths = [width] + [growth] * depth
        self.width = sum(self.widths)
        layers = [DenseLayer(width + index * growth, growth, norm=norm) for index in range(depth)]
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Return the input and all new channels, B, width, H, W."""
        return self.piecewise(x) if on("pieces") and not self.norm else self.concatenated(x)

    def concatenated(self, x: Tensor) -> Tensor:
        """The direct form: every layer reads the concatenation."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x

    def piecewise(self, x: Tensor) -> Tensor:
        """The same with each piece convolved once for all the layers that read it."""
        layers = cast(list[DenseLayer], list(self.layers))
        pieces, start = [x], 0
        hidden: Tensor | None = None  # what the coming layers have gathered so far, 32 channels each
        for index, layer in enumerate(layers):
            stop = start + self.widths[index]
            weight = torch.cat([later.conv1.weight[:, start:stop] for later in layers[index:]])
            new = F.conv2d(F.relu(pieces[-1]), weight)
            hidden = new if hidden is None else hidden + new
            pieces.append(layer.conv2(F.relu(hidden[:, : layer.hidden])))
            hidden, start = hidden[:, layer.hidden :], stop
        return torch.cat(pieces, dim=1)


class DenseLayer(nn.Module):
    """Norm, 1x1 convolution, norm, 3x3 convolution, where a norm is a ReLU or batch norm and ReLU."""

    def __init__(self, width: int, growth: int, *, norm: bool) -> None:
        super().__init__()
        self.hidden = 2 * growth
        self.norm1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.conv1 = nn.Conv2d(width, self.hidden, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(self.hidden) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(self.hidden, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the new channels, B, growth, H, W."""
        return self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


class Transition(nn.Module):
    """Batch norm, 1x1 convolution and, if it halves, 2x2 average pooling."""

    def __init__(self, width: int, out: int, *, halve: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, out, 1, bias=False)
        self.pool = nn.AvgPool2d(2) if halve else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return B, out, H', W'."""
        return self.pool(self.conv(self.norm(x)))

    def behind(self, block: DenseBlock, x: Tensor) -> Tensor:
        """Return what this makes of a block's output on a GPU."""
        layers = cast(list[DenseLayer], list(block.layers))
        pieces = pieces_by_rows(x, [layer.conv1.weight for layer in layers], [layer.conv2 for layer in layers])
        made = pooled_transition(pieces, self.norm, self.conv, self.pool)
        return self(torch.cat(pieces, dim=1)) if made is None else made

    def after(self, block: DenseBlock, x: Tensor) -> Tensor:
        """Return what this makes of a block's output without making that output."""
        layers = cast(list[DenseLayer], list(block.layers))
        first, kernels = [layer.conv1.weight for layer in layers], [layer.conv2.weight for layer in layers]
        halve = not isinstance(self.pool, nn.Identity)
        batch = isinstance(norm := self.norm, nn.BatchNorm2d) and (norm.training or norm.running_mean is None)
        if torch.is_grad_enabled() or batch:
            pooled, mean, variance = Pieces.apply(x, halve, *first, *kernels)
        else:
            pooled = pooled_pieces(x, first, kernels, halve=halve)
        if not batch:
            return as_map(F.linear(rows(pooled), *folded(norm, self.conv)), pooled)
        if norm.running_mean is not None:
            track(norm, mean.detach(), variance.detach(), len(x) * x.shape[2] * x.shape[3])
        scale = norm.weight * (variance + norm.eps).rsqrt()
        matrix = self.conv.weight[:, :, 0, 0]
        return as_map(F.linear(rows(pooled), matrix * scale, matrix @ (norm.bias - mean * scale)), pooled)


class ResNetEmbed(TokenEmbed):
    """Three residual bottlenecks of 256 channels."""

    def __init__(self, *, in_chans: int = 3, embed_dim: int = 240, stride: int = 16) -> None:
        super().__init__(_three(Bottleneck, 256, stride), 256, in_chans=in_chans, embed_dim=embed_dim, stride=stride)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut, projected where the shapes differ."""

    def __init__(self, width: int, *, planes: int = 64, stride: int = 1) -> None:
        super().__init__()
        out = 4 * planes
        self.conv1 = nn.Conv2d(width, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes, eps=1e-3, momentum=0.01)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes, eps=1e-3, momentum=0.01)
        self.conv3 = nn.Conv2d(planes, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out, eps=1e-3, momentum=0.01)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or width != out:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Return B, 4 planes, H', W'."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class InceptionEmbed(TokenEmbed):
    """Three inception blocks of 128 channels."""

    def __init__(self, *, in_chans: int = 3, embed_dim: int = 240, stride: int = 16) -> None:
        super().__init__(_three(Inception, 128, stride), 128, in_chans=in_chans, embed_dim=embed_dim, stride=stride)


class Inception(nn.Module):
    """1x1, 3x3, 5x5 and pooling branches, concatenated to 128 channels."""

    def __init__(self, width: int, *, stride: int) -> None:
        super().__init__()
        self.branch0 = ConvUnit(width, 32, 1, stride=stride)
        self.branch1 = nn.Sequential(ConvUnit(width, 32, 1), ConvUnit(32, 64, 3, stride=stride))
        self.branch2 = nn.Sequential(ConvUnit(width, 16, 1), ConvUnit(16, 16, 5, stride=stride))
        self.branch3 = nn.Sequential(nn.MaxPool2d(3, stride=stride, padding=1), ConvUnit(width, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return B, 128, H', W'."""
        return torch.cat([self.branch0(x), self.branch1(x), self.branch2(x), self.branch3(x)], dim=1)


def _three(block: Callable[..., nn.Module], width: int, stride: int) -> list[nn.Module]:
    """Return three blocks in a row, the first on the stem."""
    return [block(w, stride=1 + h) for w, h in zip((STEM, width, width), halvings(stride), strict=True)]


class ConvUnit(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, width: int, out: int, kernel: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, out, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """Return B, out, H', W'."""
        return F.relu(self.bn(self.conv(x)))


class NonLocalEmbed(TokenEmbed):
    """Two strided convolutions, each followed by a non-local block.

    The published module halves three times in all and so only fits 112-pixel images. At stride 16 the stem pools a
    second time: the non-local blocks then see as many positions of a 224-pixel image as of a 112-pixel one, and no
    parameter changes.
    """

    def __init__(self, *, in_chans: int = 3, embed_dim: int = 240, stride: int = 16) -> None:
        first, second, third = halvings(stride)
        blocks: list[nn.Module] = [
            NonLocalStage(STEM, 128, stride=1 + first),
            NonLocalStage(128, 256, stride=1 + second),
        ]
        super().__init__(blocks, 256, in_chans=in_chans, embed_dim=embed_dim, stride=stride)
        if third:
            self.stem.append(nn.MaxPool2d(3, stride=2, padding=1))


class NonLocalStage(nn.Module):
    """3x3 convolution to 64 channels, batch norm, ReLU, non-local block."""

    def __init__(self, width: int, out: int, *, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 64, 3, stride=stride, padding=1)
        self.bn = nn.BatchNorm2d(64, eps=1e-3, momentum=0.01)
        self.mix = NonLocal(64, out)

    def forward(self, x: Tensor) -> Tensor:
        """Return B, out, H', W'."""
        return self.mix(F.relu(self.bn(self.conv(x))))


class NonLocal(nn.Module):
    """Every position gathers from all positions by unscaled dot-product attention, next to a projected shortcut."""

    def __init__(self, width: int, out: int, *, inner: int = 64) -> None:
        super().__init__()
        self.theta = nn.Sequential(nn.Conv2d(width, inner, 1), nn.BatchNorm2d(inner))
        self.phi = nn.Sequential(nn.Conv2d(width, inner, 1), nn.BatchNorm2d(inner))
        self.g = nn.Sequential(nn.Conv2d(width, inner, 1), nn.BatchNorm2d(inner))
        self.out = nn.Conv2d(inner, out, 1)
        self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1), nn.BatchNorm2d(out))
        self.norm = nn.BatchNorm2d(out)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Return B, out, H, W."""
        parts = [f(x).flatten(2).mT.unsqueeze(1) for f in (self.theta, self.phi, self.g)]  # B, 1, HW, inner
        gathered = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], scale=1.0)
        gathered = gathered.squeeze(1).mT.unflatten(2, x.shape[2:])
        return self.norm(self.out(gathered) + self.shortcut(x))


class LinearEmbed(nn.Module):
    """One linear projection of non-overlapping patches, as in ViT.

    Args:
        in_chans: image channels.
        embed_dim: token width.
        stride: side of a patch; what does not fill a patch is left out.
    """

    def __init__(self, *, in_chans: int = 3, embed_dim: int = 240, stride: int = 16) -> None:
        super().__init__()
        if stride < 1:
            raise ValueError(f"stride={stride} was asked of a linear token embedding; it must be at least 1")
        self.stride = stride
        self.proj = nn.Conv2d(in_chans, embed_dim, stride, stride=stride)

    @property
    def weight(self) -> Tensor:
        """The last projection's; hosts look at it to tell the precision."""
        return self.proj.weight

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the token grid for an image size: whole patches, at least one."""
        return max(1, height // self.stride), max(1, width // self.stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H, W."""
        return self.proj(pad_to(x, self.stride))


TOKEN_EMBEDS: dict[str, Callable[..., nn.Module]] = {
    "densenet": DenseNetEmbed,
    "resnet": ResNetEmbed,
    "inception": InceptionEmbed,
    "nonlocal": NonLocalEmbed,
    "linear": LinearEmbed,
}
