"""timm's transformer block with layers that kernels know; names of weights and results are the same."""

from typing import Any

from timm.layers import Mlp
from timm.models import vision_transformer
from torch import Tensor, nn

from .activation import Gelu, activate
from .attention import SelfAttention
from .linear import Linear
from .reuse import add


class Block(vision_transformer.Block):
    """Attention and a feed-forward part, both residual, on tokens B, N, C; arguments as timm's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "act_layer": Gelu, "mlp_layer": FeedForward})
        SelfAttention.inside(self)
        for parent in (self.attn, self.mlp):
            for name, child in parent.named_children():
                if type(child) is nn.Linear:
                    setattr(parent, name, Linear.like(child))

    def forward(self, x: Tensor, **attention: Any) -> Tensor:  # type: ignore[override]
        """Return tokens of the same shape; `attention` goes to the attention."""
        branch = self.drop_path1(self.ls1(self.attn(self.norm1(x), **attention)))
        x = add(x, branch, self.attn, self.ls1, self.drop_path1)
        return add(x, self.drop_path2(self.ls2(self.mlp(self.norm2(x)))), self.mlp, self.ls2, self.drop_path2)


class FeedForward(Mlp):
    """timm's feed-forward part, whose activation may write over its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        hidden = activate(self.act, self.fc1(x), x, self.fc1)
        return self.drop2(self.fc2(self.norm(self.drop1(hidden))))
