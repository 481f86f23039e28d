"""Numbers of things in words, words that are numbers, and errors that only their words tell apart."""

# PyTorch's error on a CPU is a plain RuntimeError.
NO_MEMORY = ("allocate memory", "not enough memory", "Storage size calculation overflowed")


def count_of(number: int, noun: str) -> str:
    """Return a number of things in words: 1 epoch, 2 epochs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_are(number: int, noun: str) -> str:
    """Return the beginning of a sentence about a number of things: 1 image is, 2 images are."""
    return f"{count_of(number, noun)} {'is' if number == 1 else 'are'}"


def is_number(text: str) -> bool:
    """Tell whether a text is a number as Python writes it."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_memory_error(error: BaseException) -> bool:
    """Tell whether an error means that the machine's memory has run out."""
    return isinstance(error, MemoryError) or (
        type(error) is RuntimeError and any(words in str(error) for words in NO_MEMORY)
    )
