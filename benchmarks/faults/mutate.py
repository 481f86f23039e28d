"""Changes at random: of bytes, and of the plain values that JSON and YAML hold."""

import json
import random

NUMBERS = (0, 1, -1, 2, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63))
WORDS = ("", "x", "..", "/etc/passwd", "../../x.jpg", "a\0b", "\udcff", "1e999", "nan", "*", "{0..9}", "x" * 5000, "👁")
VALUES = (None, True, False, *NUMBERS, 0.5, 1e308, float("inf"), float("nan"), *WORDS, [], {}, [[]], [0.5], ["x"])


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with a few changes: bits, numbers, pieces cut, doubled, moved or filled."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        if not data:
            return bytes(draw.randbytes(draw.randrange(64)))
        place = draw.randrange(min(len(data), draw.choice((64, 512, 10**9))))
        size = draw.choice((1, 4, 16, 512, 4096))
        match draw.randrange(8):
            case 0:
                data[place] ^= 1 << draw.randrange(8)
            case 1:
                width, order = draw.choice((2, 4, 8)), draw.choice(("big", "little"))
                number = draw.choice(NUMBERS) % 2 ** (8 * width)
                data[place : place + width] = number.to_bytes(width, order)
            case 2:
                del data[place:]
            case 3:
                del data[place : place + size]
            case 4:
                data[place:place] = data[place : place + size] * draw.choice((1, 2, 50))
            case 5:
                data[place : place + size] = draw.randbytes(size)
            case 6:
                data[place : place + size] = draw.choice((b"\0", b"\xff", b"9", b"[", b" ")) * size
            case 7:
                other = draw.randrange(len(data))
                data[place : place + size] = data[other : other + size]
    return bytes(data)


def twist(value, draw: random.Random):
    """Return plain values with one or more changed, removed, renamed, doubled or nested."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        value = _twist(value, draw)
    return value


def _twist(value, draw):
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key, kept = draw.choice(list(value)), dict(value)
        chance = draw.random()
        if chance < 0.1:
            del kept[key]
        elif chance < 0.2:
            kept[draw.choice(WORDS)] = kept.pop(key)
        else:
            kept[key] = _twist(kept[key], draw)
        return kept
    if isinstance(value, list) and value and draw.random() < 0.8:
        place, kept = draw.randrange(len(value)), list(value)
        kept[place : place + 1] = draw.choice(([_twist(kept[place], draw)], [], [kept[place]] * 3))
        return kept
    if draw.random() < 0.03:
        return _nest(draw.choice((50, 2000)))
    return draw.choice(VALUES)


def _nest(depth):
    value = 1
    for _ in range(min(depth, 900)):  # deeper than json writes, see `as_text`
        value = [value]
    return value


def as_text(value, draw):
    """Return JSON, now and then nested deeper than Python can follow."""
    return "[" * 100_000 if draw.random() < 0.01 else json.dumps(value)
