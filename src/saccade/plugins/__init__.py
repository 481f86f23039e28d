"""Plug-ins that are attached to models in place, and can be detached."""

from .attach import Handle, attach, attached
from .broadcast import ContextBroadcast
from .extra_block import ExtraBlock
from .lora import LoRA
from .pretrained import from_pretrained
from .registry import PLUGINS, register_plugin
from .second_order import SecondOrderHead
from .squeeze import SqueezeExcite
from .token_embedding import TokenEmbedding
from .tokens import Host, HostError, Tokens, find_host, read_tokens
from .uniform import UniformHead

__all__ = [
    "PLUGINS",
    "ContextBroadcast",
    "ExtraBlock",
    "Handle",
    "Host",
    "HostError",
    "LoRA",
    "SecondOrderHead",
    "SqueezeExcite",
    "TokenEmbedding",
    "Tokens",
    "UniformHead",
    "attach",
    "attached",
    "find_host",
    "from_pretrained",
    "read_tokens",
    "register_plugin",
]
