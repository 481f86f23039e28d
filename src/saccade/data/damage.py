"""Cheap and certain checks for damaged image files that decoders accept."""

import io
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from PIL import Image

PIECE = 1 << 20
STRIP = 1 << 22  # pixels compared at a time
EOI = b"\xff\xd9"
MORE = b"\xa5\x3c\x96\x69" * 16  # arbitrary entropy-coded data without markers


def find_damage(file: BinaryIO, image: Image.Image, *, at_least: int | None = None) -> tuple[str, str] | None:
    """Return the reason and the kind of damage of a decoded image's file; None if none is known."""
    if image.format == "PNG":
        return None if _png_sums_hold(file) else ("the file is damaged (wrong checksum of the pixels)", "damaged")
    if image.format == "WEBP" and _ends_in_zeros(file):
        return "the file is truncated (more than half of its pixel data, at the end, are zero bytes)", "truncated"
    if image.format == "JPEG" and _ends_grey(image) and _takes_more(file, image, at_least):
        return "the file is truncated (the data end before the last pixel)", "truncated"
    return None


def _png_sums_hold(file: BinaryIO) -> bool:
    """Check the CRCs of pixel chunks, which PIL does not check."""
    position, in_pixels = 8, False
    while True:
        file.seek(position)
        head = file.read(8)
        if len(head) < 8:
            return True  # the missing part was not needed for decoding
        length, kind = struct.unpack(">I4s", head)
        if kind != b"IDAT":
            if in_pixels or kind == b"IEND":
                return True
            position += 12 + length
            continue
        in_pixels, found, left = True, zlib.crc32(kind), length
        while left:
            piece = file.read(min(left, PIECE))
            if not piece:
                return False
            found, left = zlib.crc32(piece, found), left - len(piece)
        if file.read(4) != struct.pack(">I", found):
            return False
        position += 12 + length


def _ends_in_zeros(file: BinaryIO) -> bool:
    """Whether more than half of a lossy WebP are trailing zeros; an intact one has at most a fifth.

    Lossless ones may end in zeros and are not checked.
    """
    file.seek(12)
    while len(head := file.read(8)) == 8:
        kind, length = struct.unpack("<4sI", head)
        if kind == b"ANMF":  # the first frame, whose chunks begin after its place and time
            file.seek(16, io.SEEK_CUR)
        elif kind == b"VP8 ":
            middle = file.tell() + length // 2
            file.seek(middle)
            half = file.read(length - length // 2)
            return not half.rstrip(b"\0")
        else:
            file.seek(length + length % 2, io.SEEK_CUR)
    return False


def _ends_grey(image: Image.Image) -> bool:
    """Whether the last pixel has the grey that the decoder fills in for missing data."""
    return image.getpixel((image.width - 1, image.height - 1)) in (128, (128, 128, 128))


def _takes_more(file: BinaryIO, image: Image.Image, at_least: int | None) -> bool:
    """Whether data inserted before the end marker change the image, which happens only if the file is truncated."""
    file.seek(0)
    data = file.read()
    end = data.rfind(EOI)
    with Image.open(io.BytesIO(data[:end] + MORE + data[end:]), formats=("JPEG",)) as other:
        del data
        if at_least is not None:
            other.draft(None, (at_least, at_least))
        other.load()
        return other.size != image.size or any(
            not np.array_equal(np.asarray(other.crop(box)), np.asarray(image.crop(box))) for box in _strips(image)
        )


def _strips(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """Yield boxes of horizontal strips that take little memory."""
    rows = max(STRIP // image.width, 1)
    for top in range(0, image.height, rows):
        yield 0, top, image.width, min(top + rows, image.height)
