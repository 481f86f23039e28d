"""Tell where pictures of 16 bits use so few of them that they come out dark."""

import numpy as np

from .picture import SHADES, BadPicture, decode, header
from .source import Source

LOOKED_AT = 8  # pictures that stand for all
DIM = 64  # a picture of 16 bits whose bytes stay below it is called dim: it uses 14 or less


def depth_note(source: Source) -> list[str]:
    """Look at a few pictures and return a remark if they are dim because of their 16 bits, else nothing."""
    places = np.unique(np.linspace(0, len(source) - 1, LOOKED_AT, dtype=np.int64)).tolist() if len(source) else []
    highest = [found for index in places if (found := highest_of(source, index)) is not None]
    dim = [found for found in highest if found < DIM]
    if not dim:
        return []
    fate = "refused as black" if min(dim) < SHADES else "dark"
    return [
        f"{len(dim)} of {len(places)} pictures looked at have 16 bits and use 14 of them or less, so that they are "
        f"{fate}; save the set as 8 bits by one common scale (`saccade data check` names the pictures)"
    ]


def highest_of(source: Source, index: int) -> int | None:
    """Return the highest byte of a picture of 16 bits, 0 if it is refused as black; None for any other."""
    try:
        raw = source.raw(index)
        if raw is None or not header(raw, name=source.name(index)).sixteen_bit:
            return None
        return int(decode(raw, name=source.name(index)).max())
    except BadPicture as bad:
        return 0 if bad.kind == "range" else None
