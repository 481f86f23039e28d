"""Every kind of image becomes upright 8-bit RGB, and every bad one a BadSample that says why."""

import io
import os
import pickle
import struct
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageFile

from saccade.data.image import BadSample, decode, header
from support.images import encoded, pixels


def saved(image: Image.Image, format: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def big_png(width: int, height: int) -> bytes:
    """Return a PNG whose header claims a size; its content is a few bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_image_comes_back_exactly_from_path_bytes_and_file(tmp_path, format):
    data = encoded(1, format, **({"lossless": True} if format == "WEBP" else {}))
    path = tmp_path / "picture"
    path.write_bytes(data)
    for source in (path, data, io.BytesIO(data)):
        got = decode(source, name="picture")
        assert got.dtype == np.uint8
        assert got.flags.writeable
        np.testing.assert_array_equal(got, pixels(1))


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr"])
def test_other_modes_become_rgb(mode):
    image = Image.fromarray(pixels(2)).convert(mode)
    format = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    options = {"quality": 95} if format == "JPEG" else {}
    got = decode(saved(image, format, **options), name="picture")
    assert got.shape == (24, 32, 3)
    assert np.abs(got.astype(int) - np.asarray(image.convert("RGB"), dtype=int)).mean() < 4


def test_grey_sixteen_bit_is_scaled_to_eight():
    values = np.linspace(0, 65535, 24 * 32).astype(np.uint16).reshape(24, 32)
    for format in ("PNG", "TIFF"):
        data = saved(Image.fromarray(values), format)
        np.testing.assert_array_equal(decode(data, name="picture")[..., 1], values >> 8)
        assert header(data, name="picture").sixteen_bit


def deep_colour(values) -> bytes:
    """Return a PNG of one row of 16-bit colours, N, 3."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", len(values), 1, 16, 2, 0, 0, 0)
    row = b"\0" + np.asarray(values, dtype=">u2").tobytes()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("top", [1, 255, 1023, 4095])
@pytest.mark.parametrize(("format", "type"), [("PNG", np.uint16), ("TIFF", np.uint16), ("TIFF", np.int32)])
def test_sixteen_bits_that_would_come_out_black_are_refused_with_advice(top, format, type):
    values = np.linspace(0, top, 24 * 32).astype(type).reshape(24, 32)
    with pytest.raises(BadSample, match=f"only reach {top} of 65535.*8 bits with one common scale") as caught:
        decode(saved(Image.fromarray(values), format), name="cell.tif")
    assert caught.value.kind == "range"


def test_sixteen_bit_colour_that_would_come_out_black_is_refused():
    with pytest.raises(BadSample, match="only reach 4095 of 65535"):
        decode(deep_colour([[4095, 1000, 20], [5, 6, 7]]), name="x")
    assert decode(deep_colour([[4096, 1000, 20], [5, 6, 7]]), name="x").max() == 16


def test_dim_or_black_images_are_read_as_they_are():
    dim = np.full((4, 4), 4096, np.uint16)
    assert decode(saved(Image.fromarray(dim), "PNG"), name="x").max() == 16
    assert decode(saved(Image.fromarray(np.zeros((4, 4), np.uint16)), "PNG"), name="x").max() == 0
    assert decode(saved(Image.fromarray(np.full((4, 4), 3, np.uint8)), "PNG"), name="x").max() == 3


def test_image_of_floating_point_numbers_is_refused_with_advice():
    with pytest.raises(BadSample, match="convert it to 8 or 16 bits"):
        decode(saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), name="picture")


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_parts_are_white(mode):
    layer = Image.fromarray(pixels(3)).convert(mode)
    alpha = np.zeros((24, 32), np.uint8)
    alpha[:12] = 255
    layer.putalpha(Image.fromarray(alpha))
    got = decode(saved(layer, "PNG"), name="picture")
    assert (got[12:] == 255).all()
    np.testing.assert_array_equal(
        got[:12], np.asarray(Image.fromarray(pixels(3)).convert(mode[:-1]).convert("RGB"))[:12]
    )


def test_transparent_palette_colour_is_white():
    image = Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8), mode=None).convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60])
    got = decode(saved(image, "PNG", transparency=1), name="picture")
    np.testing.assert_array_equal(got[0], [[10, 20, 30], [255, 255, 255]])


def test_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode(data, name="picture")[0, 0], [255, 0, 0])
    assert header(data, name="picture").animated


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    image = Image.fromarray(pixels(4))
    exif = Image.Exif()
    exif[0x0112] = orientation
    got = decode(saved(image, "PNG", exif=exif), name="picture")
    upright = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: np.rot90(a),
    }[orientation](pixels(4))
    np.testing.assert_array_equal(got, upright)


def test_damaged_exif_does_not_lose_the_image():
    data = encoded(5, exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
    assert decode(data, name="picture").shape == (24, 32, 3)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "GIF", "TIFF"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated_file_is_bad(format, share):
    data = saved(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)), format)
    with pytest.raises(BadSample) as caught:
        decode(data[: int(len(data) * share)], name="cut.jpg")
    assert caught.value.name == "cut.jpg"
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (bytes(1000), "empty"),
        (b"this is no image\n" * 10, "foreign"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "foreign"),
        (b"\x89PNG\r\n\x1a\n", "damaged"),
        (os.urandom(64), "foreign"),
    ],
    ids=["empty", "zeros", "text", "postscript", "only a signature", "noise"],
)
def test_what_is_not_an_image_is_bad(data, kind):
    with pytest.raises(BadSample) as caught:
        decode(data, name="x.jpg")
    assert caught.value.kind in (kind, "foreign")
    assert str(caught.value).startswith("x.jpg: ")


def test_text_is_called_text():
    with pytest.raises(BadSample, match="it is text, not an image"):
        decode(b"hello", name="x.jpg")


@pytest.mark.parametrize("read", [decode, header])
def test_bomb_is_refused_from_its_header_without_taking_memory(read):
    data = big_png(50_000, 50_000)
    tracemalloc.start()
    with pytest.raises(BadSample, match="refused before decoding") as caught:
        read(data, name="bomb.png")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.kind == "huge"
    assert peak < 5 * 2**20


def test_limit_on_pixels_can_be_lowered():
    data = encoded(1, "PNG")
    assert decode(data, name="x", max_pixels=24 * 32).shape == (24, 32, 3)
    with pytest.raises(BadSample, match="32 x 24 is more than 767 pixels"):
        decode(data, name="x", max_pixels=24 * 32 - 1)


def test_missing_file_and_folder_are_bad(tmp_path):
    with pytest.raises(BadSample, match="does not exist"):
        decode(tmp_path / "gone.jpg", name="gone.jpg")
    with pytest.raises(BadSample):
        decode(tmp_path, name="folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_bad(tmp_path):
    path = tmp_path / "secret.jpg"
    path.write_bytes(encoded(1))
    path.chmod(0)
    with pytest.raises(BadSample, match="permission"):
        decode(path, name="secret.jpg")


def test_denied_permission_is_called_that(monkeypatch, tmp_path):
    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("saccade.data.image.open_regular", refuse)
    with pytest.raises(BadSample, match="permission") as caught:
        decode(tmp_path / "secret.jpg", name="secret.jpg")
    assert caught.value.kind == "denied"


def test_bad_image_survives_pickling():
    bad = pickle.loads(pickle.dumps(BadSample("a.jpg", "the file is empty", "empty")))
    assert (bad.name, bad.reason, bad.kind) == ("a.jpg", "the file is empty", "empty")


def test_large_jpeg_is_decoded_smaller_but_not_too_small():
    data = encoded(6, height=640, width=960)
    assert decode(data, name="x").shape == (640, 960, 3)
    for at_least, height in ((320, 320), (100, 160), (80, 80), (321, 640), (2000, 640)):
        assert decode(data, name="x", at_least=at_least).shape[0] == height
    small = decode(data, name="x", at_least=160).astype(int)
    whole = np.asarray(Image.fromarray(decode(data, name="x")).resize((240, 160), Image.Resampling.BOX), dtype=int)
    assert np.abs(small - whole).mean() < 3


def test_open_file_given_stays_open_and_own_files_are_closed():
    file = io.BytesIO(encoded(1))
    decode(file, name="x")
    assert not file.closed
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        decode(encoded(1), name="x")


def test_decoding_in_threads_leaves_the_warning_filters_alone():
    data = big_png(10_000, 10_000)  # PIL warns of it

    def attempt(_):
        assert header(data, name="x").width == 10_000

    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, range(64)))
    assert warnings.filters == before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attempt(0)
    assert caught == []


def test_header_tells_format_and_size_without_decoding():
    about = header(encoded(1, "WEBP"), name="x")
    assert (about.format, about.width, about.height, about.orientation) == ("WEBP", 32, 24, 1)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP"])
def test_damaged_bytes_give_an_image_or_a_bad_image_and_nothing_else(format):
    random = np.random.default_rng(0)
    whole = np.frombuffer(encoded(7, format), np.uint8)
    for _ in range(100):
        data = whole.copy()
        places = random.integers(0, len(data), 3)
        data[places] = random.integers(0, 256, 3)
        try:
            got = decode(data.tobytes(), name="x", max_pixels=10**6)
        except BadSample:
            continue
        assert got.dtype == np.uint8
        assert got.shape[2] == 3


def test_sixteen_bit_colour_is_told_from_a_wide_bitmap():
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    row = b"\0" + struct.pack(">HHH", 0x1234, 0x5678, 0x9ABC)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    assert header(data, name="x").sixteen_bit
    assert decode(data, name="x").tolist() == [[[0x12, 0x56, 0x9A]]]
    assert not header(encoded(1, "BMP", width=1600), name="x").sixteen_bit
