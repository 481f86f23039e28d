"""Numbers of things in words."""


def count_of(number: int, noun: str) -> str:
    """Return a number of things in words: 1 epoch, 2 epochs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_are(number: int, noun: str) -> str:
    """Return the beginning of a sentence about a number of things: 1 picture is, 2 pictures are."""
    return f"{count_of(number, noun)} {'is' if number == 1 else 'are'}"
