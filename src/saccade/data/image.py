"""Decode one image to RGB pixels, or raise `BadSample` with the reason."""

import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from ..support.files import NotRegularError, open_regular
from .damage import find_damage

MAX_PIXELS = 120_000_000  # decoding this many takes 0.8 GiB; PIL's own limit is 178,956,970
MAX_BYTES = 512 * 2**20  # largest image file
STRIP = 2**22  # pixels converted to RGB at a time
EXTENSIONS = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".jpe": "JPEG",
    ".jfif": "JPEG",
    ".pjpeg": "JPEG",
    ".pjp": "JPEG",
    ".mpo": "JPEG",
    ".png": "PNG",
    ".apng": "PNG",
    ".bmp": "BMP",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".tif": "TIFF",
    ".tiff": "TIFF",
}
FORMATS = tuple(dict.fromkeys(EXTENSIONS.values()))  # other PIL decoders are disabled: some run programs
ORIENTATION = 0x0112
SHADES = 16  # images with fewer of 256 grey levels are black to a model
DIM = 64  # 16-bit images whose high bytes stay below it use 14 bits or less
# By EXIF orientation: the view of an upright array that has the file's pixel order.
AS_STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}


class Fault(NamedTuple):
    """Why a sample cannot be used: reason, kind, and the number of samples it stands for."""

    reason: str
    kind: str = "damaged"
    samples: int = 1


def read_faults(record: Mapping[str, Any]) -> dict[str, Fault]:
    """Read the faults of a training state; earlier versions stored only the reason."""
    return {name: Fault(why) if isinstance(why, str) else Fault(*why) for name, why in record.items()}


class BadSample(ValueError):  # noqa: N818
    """A sample that cannot be used.

    Args:
        name: name for messages.
        reason: reason, as shown to the user.
        kind: of the image: missing, denied, empty, foreign (not an image), truncated, damaged, range (of its values) or
            huge; of its target: mask, size, box, doubled, no objects or unknown.
        count: number of samples it stands for: many for a truncated shard.
    """

    def __init__(self, name: str, reason: str, kind: str = "damaged", count: int = 1) -> None:
        super().__init__(name, reason, kind, count)  # all arguments, so that it can be pickled
        self.name, self.reason, self.kind = name, reason, kind
        self.fault = Fault(reason, kind, count)

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def count_bad(bad: Mapping[str, Fault]) -> int:
    """Return the number of samples that faults stand for."""
    return sum(fault.samples for fault in bad.values())


class Header(NamedTuple):
    """An image's header."""

    format: str
    width: int
    height: int
    mode: str
    sixteen_bit: bool
    transparent: bool
    animated: bool
    orientation: int


def decode(
    source: Path | bytes | BinaryIO, *, name: str, max_pixels: int = MAX_PIXELS, at_least: int | None = None
) -> np.ndarray:
    """Decode an image to upright 8-bit RGB: transparency over white, the first frame of an animation.

    Args:
        source: a file, its bytes or an open binary file.
        name: the image's name in errors.
        max_pixels: larger images are refused by their header, before memory is allocated.
        at_least: decode large JPEGs at 1/2, 1/4 or 1/8 of their size, as long as the short side keeps this many pixels;
            much faster for photographs.

    Returns:
        H, W, 3 uint8.
    """
    with _opened(source, name=name, max_pixels=max_pixels) as (image, file):
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        sixteen = _is_sixteen_bit(image)  # not known after decoding
        image.load()
        if damage := find_damage(file, image, at_least=at_least):
            raise BadSample(name, *damage)
        _check_range(image, name, sixteen=sixteen)
        return _upright(image)


def decode_values(source: Path | bytes | BinaryIO, *, name: str, colours: bool = False) -> np.ndarray:
    """Decode a mask with its exact values: no scaling, rotation or colour conversion.

    Args:
        source: a file, its bytes or an open binary file.
        name: the mask's name in errors.
        colours: return a palette's colours instead of its indices.

    Returns:
        H, W of grey values (8 or 16 bits) or palette indices, or H, W, 3 uint8 of colours.
    """
    with _opened(source, name=name, max_pixels=MAX_PIXELS) as (image, file):
        if image.format in ("JPEG", "MPO"):
            raise BadSample(name, "it is a JPEG, which does not preserve the values of a mask; save it as PNG", "range")
        image.load()
        if damage := find_damage(file, image):
            raise BadSample(name, *damage)
        if colours:
            return np.array(image.convert("RGB"))
        if image.mode in ("LA", "La", "PA"):
            return np.array(image.getchannel(0))
        plain = image.mode in ("1", "L", "P", "I") or image.mode.startswith("I;")
        values = np.array(image) if plain else np.array(image.convert("RGB"))
        return values.astype(np.uint8) if values.dtype == bool else values


def header(source: Path | bytes | BinaryIO, *, name: str, max_pixels: int = MAX_PIXELS) -> Header:
    """Read an image's header without decoding it."""
    with _opened(source, name=name, max_pixels=max_pixels) as (image, _):
        return Header(
            format="JPEG" if image.format == "MPO" else str(image.format),
            width=image.width,
            height=image.height,
            mode=image.mode,
            sixteen_bit=_is_sixteen_bit(image),
            transparent=_is_transparent(image),
            animated=image.format != "MPO" and bool(getattr(image, "is_animated", False)),
            orientation=_orientation(image),
        )


def highest_of_sixteen_bits(source: Path | bytes, *, name: str) -> int | None:
    """Return the highest byte of a 16-bit image, 0 if it is refused as black; None for other images."""
    try:
        return int(decode(source, name=name).max()) if header(source, name=name).sixteen_bit else None
    except BadSample as bad:
        return 0 if bad.kind == "range" else None


@contextmanager
def _opened(source: Path | bytes | BinaryIO, *, name: str, max_pixels: int) -> Iterator[tuple[Image.Image, BinaryIO]]:
    """Open an image; errors inside the `with` block become BadSample."""
    file: BinaryIO | None = None
    try:
        file = _file(source, name)
        with _QUIET, Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise BadSample(name, _too_large(f"{image.width} x {image.height}", max_pixels), "huge")
            yield image, file
    except (BadSample, MemoryError):
        raise
    except Exception as error:  # decoders raise many types on damaged files
        raise BadSample(name, *_reason(error, file, max_pixels)) from error
    finally:
        if file is not None and file is not source:
            file.close()


def _file(source: Path | bytes | BinaryIO, name: str) -> BinaryIO:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if not isinstance(source, Path):
        return source
    file = open_regular(source)
    size = os.fstat(file.fileno()).st_size
    if size > MAX_BYTES:
        file.close()
        raise BadSample(name, f"it has {size} bytes; the limit for an image is {MAX_BYTES}", "huge")
    return file


def _upright(image: Image.Image) -> np.ndarray:
    """Return upright pixels, H, W, 3 uint8, without a second copy of a large image."""
    turn, (width, height) = _orientation(image), image.size
    upright = np.empty((width, height, 3) if turn >= 5 and turn in AS_STORED else (height, width, 3), np.uint8)
    stored = AS_STORED[turn](upright) if turn in AS_STORED else upright
    rows = max(STRIP // max(width, 1), 1)
    if rows >= height:
        stored[:] = np.asarray(_to_rgb(image))
        return upright
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        stored[top : top + rows] = np.asarray(_to_rgb(strip))
    return upright


def _check_range(image: Image.Image, name: str, *, sixteen: bool) -> None:
    """Refuse pixels with an unknown value range."""
    mode = image.mode
    if mode in ("F", "I") or mode.startswith("I;"):
        values = np.asarray(image)
        low, high = (int(values.min()), int(values.max())) if values.size and mode != "F" else (0, 0)
        if mode == "F" or low < 0 or high > 65535:
            reason = "its pixels are 32-bit numbers of unknown range; convert it to 8 or 16 bits"
            raise BadSample(name, reason, "range")
        if high:  # an image of zeros is black at any range
            _refuse_black(high, name)
    elif sixteen and mode != "CMYK":
        colours = [band for band in image.getbands() if band not in "Aa"]
        highest = max(int(image.getchannel(band).getextrema()[1]) for band in colours)  # type: ignore[arg-type]
        _refuse_black(256 * highest + 255, name)


def _to_rgb(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode == "I" or mode.startswith("I;"):
        # The high byte, as PIL does with 16-bit colour.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if _is_transparent(image):
        straight = {"RGBa": "RGBA", "La": "LA"}.get(mode)
        layer = (image.convert(straight) if straight else image).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image if mode == "RGB" else image.convert("RGB")


def _refuse_black(highest: int, name: str) -> None:
    """Refuse a 16-bit image that would keep fewer than SHADES of 256 levels, such as 12-bit camera data."""
    if highest < 256 * SHADES:
        raise BadSample(
            name,
            f"its 16-bit values only reach {highest} of 65535, which is practically black; save the whole dataset as "
            "8 bits with one common scale, such as value / 16 for a 12-bit camera",
            "range",
        )


def _is_sixteen_bit(image: Image.Image) -> bool:
    # PIL reads colour as 8 bits; the decoder's arguments have the file's depth, such as "RGB;16B".
    kinds = [tile[3] if isinstance(tile[3], str) else (tile[3] or ("",))[0] for tile in getattr(image, "tile", ())]
    return image.mode.startswith("I") or any(";16" in str(kind) for kind in kinds)


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


def _orientation(image: Image.Image) -> int:
    try:
        # The base class's method: PNG's own decodes the image to find EXIF after the pixels.
        return int(Image.Image.getexif(image).get(ORIENTATION, 1))
    except Exception:  # a damaged EXIF block does not concern the pixels
        return 1


def _reason(error: Exception, file: BinaryIO | None, max_pixels: int) -> tuple[str, str]:
    """Return reason and kind of an error raised while opening or decoding."""
    if isinstance(error, FileNotFoundError):
        return "the file does not exist", "missing"
    if isinstance(error, NotRegularError):
        return f"it is {error.what}; only regular files are read", "foreign"
    if isinstance(error, PermissionError):
        return "permission denied", "denied"
    if isinstance(error, Image.DecompressionBombError):
        return _too_large("its size", min(max_pixels, MAX_PIXELS)), "huge"
    if isinstance(error, Image.UnidentifiedImageError) and file is not None:
        return _unidentified(file)
    if "truncated" in str(error).lower():
        return f"the file is truncated ({error})", "truncated"
    return f"the file is damaged or cannot be read ({type(error).__name__}: {error})", "damaged"


def _unidentified(file: BinaryIO) -> tuple[str, str]:
    file.seek(0)
    start = file.read(512)
    if not start:
        return "the file is empty (0 bytes)", "empty"
    if not start.strip(b"\0"):
        return "the file holds only zero bytes", "empty"
    known = ", ".join(FORMATS)
    text = all(byte >= 32 or byte in b"\t\n\r\f" for byte in start)
    return f"it is {'text, ' if text else ''}not an image in a known format ({known})", "foreign"


def _too_large(size: str, max_pixels: int) -> str:
    return f"{size} is more than {max_pixels} pixels, refused before decoding; raise max_pixels if this is intended"


class _Quiet:
    """Silences PIL's warnings in all threads, which `catch_warnings` cannot do when uses overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._filters.__exit__(None, None, None)


_QUIET = _Quiet()
