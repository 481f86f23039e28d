"""Numbers of things in words, and words that are numbers."""


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
