"""Recognise modules of libraries by class and attribute names."""

from collections.abc import Iterator

from torch import nn

from ._parts import ATTENTION_NAMES, HostError, has_name

ATTENTIVE = ("attention", "attn", "performer")  # in lower case
CHANNEL_ATTENTION = ("XCA", "ChannelAttention", "CrossCovariance")  # attention between channels
REORDERED = ("Hiera",)  # models whose tokens are not in row-major order
OVERLAPPING = ("Halo",)  # modules whose keys are from larger windows than the queries
# Attribute names of libraries.
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
OBJECTS = ("num_queries", "num_detection_tokens")  # in Hugging Face detectors
NO_WORDS = ("pos", "wpe", "relative")  # names of position embeddings


def find_attention(block: nn.Module) -> nn.Module | None:
    """Return the attention module of a block, if any."""
    return next((m for name in ATTENTION_NAMES if isinstance(m := getattr(block, name, None), nn.Module)), None)


def is_attention(path: str) -> bool:
    """Whether a module's path names it as a block's attention."""
    return path.rpartition(".")[2] in ATTENTION_NAMES


def is_attentive(module: nn.Module) -> bool:
    """Whether a module is attention by its class name."""
    return any(word in type(module).__name__.lower() for word in ATTENTIVE)


def attends_channels(module: nn.Module) -> bool:
    """Whether a module's attention is between channels, not tokens."""
    return has_name(module, CHANNEL_ATTENTION)


def overlaps_windows(module: nn.Module) -> bool:
    """Whether a module's key windows are larger than its query windows."""
    return has_name(module, OVERLAPPING)


def reorders_tokens(model: nn.Module) -> bool:
    """Whether a model's tokens are not in row-major order."""
    return any(has_name(module, REORDERED) for module in model.modules())


def count_objects(model: nn.Module) -> int:
    """Return the number of a detector's object queries; 0 for other models."""
    config = getattr(model, "config", None)
    return next((n for name in OBJECTS if isinstance(n := getattr(config, name, None), int)), 0)


def count_heads(module: nn.Module) -> int | None:
    """Return a module's number of heads, if known."""
    return next((n for name in HEADS if isinstance(n := getattr(module, name, None), int) and n > 0), None)


def find_embedding(model: nn.Module) -> nn.Module:
    """Return a model's token embedding, not that of positions or types."""
    own = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None  # type: ignore[operator]
    if isinstance(own, nn.Embedding):
        return own
    for name, module in _embeddings(model):
        if not any(word in name for word in (*NO_WORDS, "type")):
            return module
    raise HostError(f"{type(model).__name__} has no token embedding, so it does not read text")


def reads_text(model: nn.Module) -> bool:
    """Whether a model has a token embedding."""
    return any(not any(word in name for word in NO_WORDS) for name, _ in _embeddings(model))


def _embeddings(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            yield path.rpartition(".")[2], module
