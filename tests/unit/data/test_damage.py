"""Files that decoders take for whole though they are damaged are refused, and whole ones never are."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from saccade.data.image import BadSample, decode


def noise(height: int = 96, width: int = 96, *, flat_from: int | None = None, flat: int = 128) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    if flat_from is not None:
        values[flat_from:] = flat
    return Image.fromarray(values)


def saved(image: Image.Image, format: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def zeroed(data: bytes, share: float) -> bytes:
    kept = int(len(data) * share)
    return data[:kept] + bytes(len(data) - kept)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_png_whose_end_is_zeros_is_bad(share):
    with pytest.raises(BadSample):
        decode(zeroed(saved(noise(), "PNG"), share), name="x")


def test_png_whose_pixels_have_a_wrong_checksum_is_bad_in_any_chunk():
    head = struct.pack(">IIBBBBB", 3, 2, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes([0, 10, 20, 30, 0, 40, 50, 60]))
    parts = [chunk(b"IDAT", pixels[:5]), chunk(b"IDAT", pixels[5:])]
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"tEXt", b"Comment\0hello")
    whole = start + b"".join(parts) + chunk(b"IEND", b"")
    assert decode(whole, name="x")[..., 0].tolist() == [[10, 20, 30], [40, 50, 60]]
    for number in (0, 1):
        wrong = [part[:-1] + bytes([part[-1] ^ 1]) if place == number else part for place, part in enumerate(parts)]
        with pytest.raises(BadSample, match="checksum") as caught:
            decode(start + b"".join(wrong) + chunk(b"IEND", b""), name="x")
        assert caught.value.kind == "damaged"


def test_lossy_webp_of_mostly_zeros_is_bad():
    data = saved(noise(200, 200), "WEBP")
    assert decode(data, name="x").shape == (200, 200, 3)
    with pytest.raises(BadSample, match="truncated") as caught:
        decode(zeroed(data, 0.4), name="x")
    assert caught.value.kind == "truncated"


@pytest.mark.parametrize("options", [{"method": 0, "quality": 30}, {"method": 0}, {}, {"lossless": True, "method": 0}])
@pytest.mark.parametrize("flat_from", [8, 64])
def test_whole_webp_that_ends_in_one_colour_is_read(options, flat_from):
    """Such files end in long runs of zero bytes."""
    for colour in (0, 128, 255):
        image = noise(256, 256, flat_from=flat_from, flat=colour)
        assert decode(saved(image, "WEBP", **options), name="x").shape == (256, 256, 3)
    frames = [noise(64, 64), noise(64, 64, flat_from=8)]
    assert decode(saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]), name="x").shape == (64, 64, 3)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("at_least", [None, 12])
@pytest.mark.parametrize("share", [0.4, 0.7, 0.95])
def test_jpeg_cut_short_with_an_end_mark_put_on_is_bad(mode, at_least, share):
    data = saved(noise().convert(mode), "JPEG")
    with pytest.raises(BadSample, match="the data end before the last pixel") as caught:
        decode(data[: int(len(data) * share)] + b"\xff\xd9", name="x", at_least=at_least)
    assert caught.value.kind == "truncated"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}])
def test_whole_jpeg_that_ends_grey_is_read(options):
    for flat_from in (0, 16, 64):
        for mode in ("RGB", "L"):
            data = saved(noise(flat_from=flat_from).convert(mode), "JPEG", **options)
            for tail in (b"", bytes(1000), data):
                got = decode(data + tail, name="x")
                assert (got[-1] == 128).all()


def test_bitmap_that_ends_in_black_is_read():
    data = zeroed(saved(noise(), "BMP"), 0.5)
    assert decode(data, name="x").shape == (96, 96, 3)
