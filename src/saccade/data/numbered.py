"""Classes that are numbers."""

MOST = 1_000_000  # classes; a larger label is no class, and a name for each below it would fill the memory


def numbered_classes(highest: int, *, where: str) -> tuple[str, ...]:
    """Return names of classes that are counted from 0.

    Args:
        highest: the greatest label.
        where: what an error calls the set.
    """
    if highest >= MOST:
        raise ValueError(
            f"{where} has the label {highest}; classes are counted from 0, and there are at most {MOST}. Number them "
            "without gaps, or give them names"
        )
    return tuple(map(str, range(highest + 1)))
