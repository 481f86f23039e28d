"""What a module of a host is, by the names that libraries give classes and attributes."""

from collections.abc import Iterator

from torch import nn

from ._parts import ATTENTION_NAMES, HostError, has_name

ATTENTIVE = ("attention", "attn", "performer")  # in lower case
CHANNEL_ATTENTION = ("XCA", "ChannelAttention", "CrossCovariance")  # attention among channels
REORDERED = ("Hiera",)  # models whose tokens do not lie in rows and columns
OVERLAPPING = ("Halo",)  # modules whose keys come from a larger window than the queries
# What libraries call attributes.
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
OBJECTS = ("num_queries", "num_detection_tokens")  # of Hugging Face's detectors
NO_WORDS = ("pos", "wpe", "relative")  # embeddings that are of positions


def find_attention(block: nn.Module) -> nn.Module | None:
    """Return the attention of a block; None where it has none."""
    return next((m for name in ATTENTION_NAMES if isinstance(m := getattr(block, name, None), nn.Module)), None)


def is_attention(path: str) -> bool:
    """Tell whether a module's path names it as a block's attention."""
    return path.rpartition(".")[2] in ATTENTION_NAMES


def is_attentive(module: nn.Module) -> bool:
    """Tell whether a module is attention of some kind by the name of its class."""
    return any(word in type(module).__name__.lower() for word in ATTENTIVE)


def attends_channels(module: nn.Module) -> bool:
    """Tell whether a module's attention is among channels, not among tokens."""
    return has_name(module, CHANNEL_ATTENTION)


def overlaps_windows(module: nn.Module) -> bool:
    """Tell whether a module's windows of keys are larger than its windows of queries."""
    return has_name(module, OVERLAPPING)


def reorders_tokens(model: nn.Module) -> bool:
    """Tell whether a model's tokens are not in row-major order."""
    return any(has_name(module, REORDERED) for module in model.modules())


def count_objects(model: nn.Module) -> int:
    """Return how many of a detector's tokens ask for objects; 0 for any other model."""
    config = getattr(model, "config", None)
    return next((n for name in OBJECTS if isinstance(n := getattr(config, name, None), int)), 0)


def count_heads(module: nn.Module) -> int | None:
    """Return how many heads a module says it has; None where it does not say."""
    return next((n for name in HEADS if isinstance(n := getattr(module, name, None), int) and n > 0), None)


def find_embedding(model: nn.Module) -> nn.Module:
    """Return the embedding of a model's tokens, not that of their positions or kinds."""
    own = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None  # type: ignore[operator]
    if isinstance(own, nn.Embedding):
        return own
    for name, module in _embeddings(model):
        if not any(word in name for word in (*NO_WORDS, "type")):
            return module
    raise HostError(f"{type(model).__name__} has no embedding of tokens, so it reads no words")


def reads_text(model: nn.Module) -> bool:
    """Whether a model has an embedding of words."""
    return any(not any(word in name for word in NO_WORDS) for name, _ in _embeddings(model))


def _embeddings(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            yield path.rpartition(".")[2], module
