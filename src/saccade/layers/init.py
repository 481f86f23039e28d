"""How linear layers of the published networks are drawn."""

from torch import nn


def init_linear(module: nn.Module) -> None:
    """Draw the weight of a linear layer as the published code does, truncated normal, without a bias; leave others."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
