"""The other token embeddings of SoT's table 3a (blocks: figure S-1), and all of them by name."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .padding import pad_to
from .token_embed import STEM_WIDTH, DenseNetEmbed, TokenEmbed, block_strides


class ResNetEmbed(TokenEmbed):
    """Three residual bottlenecks of 256 channels."""

    def __init__(self, *, in_chans: int = 3, embed_dim: int = 240, stride: int = 16) -> None:
        super().__init__(
            _three_blocks(Bottleneck, 256, stride), 256, in_chans=in_chans, embed_dim=embed_dim, stride=stride
        )


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
        super().__init__(
            _three_blocks(Inception, 128, stride), 128, in_chans=in_chans, embed_dim=embed_dim, stride=stride
        )


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


def _three_blocks(block: Callable[..., nn.Module], width: int, stride: int) -> list[nn.Module]:
    """Return three blocks in a row, the first on the stem."""
    widths = (STEM_WIDTH, width, width)
    return [block(w, stride=s) for w, s in zip(widths, block_strides(stride), strict=True)]


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
        first, second, third = block_strides(stride)
        blocks: list[nn.Module] = [NonLocalStage(STEM_WIDTH, 128, stride=first), NonLocalStage(128, 256, stride=second)]
        super().__init__(blocks, 256, in_chans=in_chans, embed_dim=embed_dim, stride=stride)
        if third == 2:
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
            raise ValueError(f"stride={stride} was given; a linear token embedding needs at least 1")
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
