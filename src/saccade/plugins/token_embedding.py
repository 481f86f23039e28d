"""Replace a model's patch embedding by SoT's; with `SecondOrderHead`, the paper's "+ours"."""

from typing import Any, ClassVar, Literal

import torch
from torch import nn

from ..layers.token_embed import TokenEmbed
from ..layers.token_embed_ablations import TOKEN_EMBEDS
from ..settings.values import require_choice
from .attach import Handle
from .registry import register_plugin
from .tokens import Host, HostError

Kind = Literal["densenet", "resnet", "inception", "nonlocal", "linear"]
NAMES = ("patch_embed", "patch_embeddings", "patch_embedding", "stem", "conv_proj")


@register_plugin("token_embedding")
class TokenEmbedding:
    """Embed images by a small convolutional network instead of a patch projection.

    The patch projection is detected: a convolution whose kernel equals its stride, under `patch_embed`, `stem` and the
    like (ViT, DeiT, Swin, Mixer, Hugging Face's ViT), or T2T-ViT's tokens-to-token module. The replacement has the same
    width and stride, so that positions, class token and norms are kept. It has random weights, so it has to be trained.

    Args:
        kind: "densenet" (every published SoT), "resnet", "inception", "nonlocal" or "linear".
        norm: batch norm inside the layers of "densenet"; see `DenseNetEmbed`.
        path: the module to replace, which maps images to B, C, H, W, if not detected.
        dim: channels of its output, if it is not a convolution.
        stride: stride of its output, if it is not a convolution.
    """

    name: ClassVar[str] = "token_embedding"

    def __init__(
        self,
        *,
        kind: Kind = "densenet",
        norm: bool = False,
        path: str | None = None,
        dim: int | None = None,
        stride: int | None = None,
    ) -> None:
        require_choice("kind", kind, TOKEN_EMBEDS)
        if norm and kind != "densenet":
            raise ValueError(f"norm=True was given with kind={kind!r}, but it only works with 'densenet'")
        self.kind: Kind = kind
        self.norm = norm
        self.path = path
        self.dim = dim
        self.stride = stride

    def install(self, host: Host, handle: Handle) -> None:
        """Replace the model's embedding."""
        path = self._find(host)
        parent, _, name = path.rpartition(".")
        layer = self.build(host, path)
        handle.replace(host.model.get_submodule(parent), name, layer)

    def build(self, host: Host, path: str) -> nn.Module:
        """Build the replacement of a module."""
        model: Any = host.model
        old: Any = model.get_submodule(path)
        first = next((m for m in old.modules() if isinstance(m, nn.Conv2d)), None)
        in_chans = first.in_channels if first is not None else getattr(model, "in_chans", 3)
        dim: Any
        stride: Any
        if isinstance(old, nn.Conv2d):
            dim, stride = self.dim or old.out_channels, self.stride or old.stride[0]
        else:
            dim, stride = self.dim or getattr(model, "embed_dim", None), self.stride or getattr(old, "stride", None)
        if not isinstance(dim, int) or not isinstance(stride, int):
            raise HostError(
                f"{path} of {host.name} is {type(old).__name__}, whose width and stride are unknown; pass dim= and "
                "stride="
            )
        if self.kind != "linear" and stride not in (4, 8, 16):
            raise HostError(
                f"{path} of {host.name} makes tokens with a stride of {stride} pixels; kind={self.kind!r} supports "
                "strides of 4, 8 and 16, kind='linear' any stride"
            )
        options: dict[str, Any] = {"norm": True} if self.norm else {}
        with torch.device(next(host.model.parameters()).device):
            return TOKEN_EMBEDS[self.kind](in_chans=in_chans, embed_dim=dim, stride=stride, **options)

    def _find(self, host: Host) -> str:
        if self.path is not None:
            try:
                host.model.get_submodule(self.path)
            except AttributeError:
                top = ", ".join(name for name, _ in host.model.named_children())
                raise HostError(f"path={self.path!r} was given, but {host.name} only has {top}") from None
            return self.path
        for path, module in host.model.named_modules():
            if path.rpartition(".")[2] not in NAMES or host.text:
                continue
            if isinstance(module, TokenEmbed) or hasattr(module, "split1"):
                return path
            if found := next((p for p, m in module.named_modules() if _projects_patches(m)), None):
                return f"{path}.{found}".rstrip(".")
            if _projects_patches(module):
                return path
        raise HostError(
            f"TokenEmbedding replaces a patch projection, but found none in {host.name}. Looked for a convolution "
            f"whose kernel size equals its stride under {', '.join(NAMES)}; pass path= of the module that maps "
            "images to B, C, H, W, with dim= and stride= if it is not a convolution"
        )

    def __repr__(self) -> str:
        return f"TokenEmbedding({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def _projects_patches(module: nn.Module) -> bool:
    """Whether a module is a convolution with non-overlapping patches."""
    return isinstance(module, nn.Conv2d) and module.kernel_size == module.stride and module.stride[0] > 1
