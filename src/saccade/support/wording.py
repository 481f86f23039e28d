"""Helpers for texts: counts, numbers, and errors recognised by their text."""

# PyTorch's error on a CPU is a plain RuntimeError.
NO_MEMORY = ("allocate memory", "not enough memory", "Storage size calculation overflowed")


def count_of(number: int, noun: str) -> str:
    """Return a count with its noun: 1 epoch, 2 epochs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_are(number: int, noun: str) -> str:
    """Return a count with its noun and verb: 1 image is, 2 images are."""
    return f"{count_of(number, noun)} {'is' if number == 1 else 'are'}"


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_memory_error(error: BaseException) -> bool:
    """Whether an error means that memory is exhausted."""
    return isinstance(error, MemoryError) or (
        type(error) is RuntimeError and any(words in str(error) for words in NO_MEMORY)
    )
