"""Class maps of masks: classes by grey value, palette index or colour, and ignored values."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...data.geometry import OUTSIDE
from ...data.image import BadSample
from ...data.split import abbreviate
from ...data.table import find_delimiter
from ...support.files import read_small

PETS = ("pet", "background", "border")

VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip

CITYSCAPES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)

ADE20K = tuple(
    """wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person, earth, door,
table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea, mirror, rug, field, armchair,
seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion, base, box, column, signboard, chest of drawers,
counter, sand, sink, skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool table, pillow,
screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill, bench, countertop,
stove, palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel, light, truck, tower,
chandelier, awning, streetlight, booth, television receiver, airplane, dirt track, apparel, pole, land, bannister,
escalator, ottoman, bottle, buffet, poster, stage, van, ship, fountain, conveyer belt, canopy, washer, plaything,
swimming pool, stool, barrel, basket, waterfall, tent, bag, minibike, cradle, oven, ball, food, step, tank, trade name,
microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket, sculpture, hood, sconce, vase, traffic light, tray,
ashcan, fan, pier, crt screen, plate, monitor, bulletin board, shower, radiator, glass, clock, flag""".replace(
        "\n", " "
    ).split(", ")
)


IGNORED = 255  # ignored value, unless it is a class
UNKNOWN = -2
MAX_CLASSES = 4096  # most classes
FILE_BYTES = 2**22  # largest file of classes
GUESSED = 64  # most values that are taken for classes without a file
FILES = (
    "classes.json", "colormap.json", "classes.csv", "class_dict.csv", "colormap.csv", "labelmap.txt", "classes.txt"
)  # fmt: skip
FORMS = (
    "classes.txt with one name per line, classes.csv with the columns name,value or name,r,g,b, or classes.json with "
    '{"name": value} or {"name": [r, g, b]}'
)

IN_COLOUR = "its mask is in colour, but no class file says what the colours mean"


@dataclass(frozen=True)
class ClassMap:
    """Mapping from mask values to classes."""

    names: tuple[str, ...]  # class names
    codes: tuple[int, ...]  # value of each class; colours as r * 65536 + g * 256 + b
    colours: bool = False  # whether codes are colours
    ignore: tuple[int, ...] = (IGNORED,)  # codes of ignored pixels
    sorted_codes: np.ndarray = field(init=False, repr=False, compare=False)
    sorted_classes: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse codes of two classes."""
        if len(self.names) > MAX_CLASSES:
            raise ValueError(f"{len(self.names)} classes were given; at most {MAX_CLASSES} are supported")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise ValueError(f"two classes are named {twice[0]!r}; give each its own name")
        both = sorted({code for code in self.codes if self.codes.count(code) > 1})
        if both:
            raise ValueError(
                f"two classes have the {'colour' if self.colours else 'value'} {self.describe_code(both[0])}"
            )
        pairs = dict.fromkeys(self.ignore, OUTSIDE) | {code: place for place, code in enumerate(self.codes)}
        order = sorted(pairs)
        object.__setattr__(self, "sorted_codes", np.array(order, dtype=np.int64))
        object.__setattr__(self, "sorted_classes", np.array([pairs[code] for code in order], dtype=np.int16))

    def describe_code(self, code: int) -> str:
        """Format a code."""
        return f"({code >> 16}, {code >> 8 & 255}, {code & 255})" if self.colours else str(code)

    def read(self, values: np.ndarray, *, name: str) -> np.ndarray:
        """Map values, H, W, or colours, H, W, 3, to classes, H, W int16, -1 for ignored; or raise BadSample."""
        codes = self._codes(values, name)
        place = np.searchsorted(self.sorted_codes, codes).clip(max=len(self.sorted_codes) - 1)
        found = np.where(self.sorted_codes[place] == codes, self.sorted_classes[place], UNKNOWN).astype(np.int16)
        if (found == UNKNOWN).any():
            strange = [self.describe_code(int(code)) for code in np.unique(codes[found == UNKNOWN])]
            known = ", ".join(
                f"{self.describe_code(c)} {n}" for c, n in list(zip(self.codes, self.names, strict=True))[:5]
            )
            raise BadSample(
                name,
                "its mask has values that belong to no class: "
                f"{', '.join(strange[:8])}{' ...' if len(strange) > 8 else ''}; known values are "
                f"{known}{', ...' if len(self.names) > 5 else ''}. Add them to the class file, or correct the mask",
                "mask",
            )
        return found

    def _codes(self, values: np.ndarray, name: str) -> np.ndarray:
        if self.colours:
            if values.ndim != 3:
                raise BadSample(name, "its mask is not in colour, but the class file lists colours", "mask")
            return pack(values)
        if values.ndim == 2:
            return values.astype(np.int64)
        if (values == values[..., :1]).all():  # grey saved as colour
            return values[..., 0].astype(np.int64)
        raise BadSample(name, f"{IN_COLOUR}; add {FORMS}", "mask")


def pack(colours: np.ndarray) -> np.ndarray:
    """Pack colours, H, W, 3, to codes, H, W int64."""
    parts = colours[..., :3].astype(np.int64)
    return parts[..., 0] << 16 | parts[..., 1] << 8 | parts[..., 2]


def find_map(folder: Path, *, ignore: int | None = IGNORED) -> ClassMap | None:
    """Read the class file in a folder; None if there is none."""
    for name in FILES:
        if (folder / name).is_file():
            return read_map(folder / name, ignore=ignore)
    return None


def read_map(path: Path, *, ignore: int | None = IGNORED) -> ClassMap:
    """Read a class file in one of FORMS."""
    try:
        text = read_small(path, most=FILE_BYTES).decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            entries = _from_json(json.loads(text))
        elif path.suffix.lower() == ".csv":
            entries = _from_csv(text)
        else:
            entries = _from_lines(text.splitlines())
        if not entries:
            raise ValueError("it lists no classes")
        return make_map(entries, ignore=ignore)
    except (ValueError, TypeError, KeyError, OSError, RecursionError, csv.Error) as error:
        raise ValueError(f"{path} is not a valid class file ({str(error)[:300]}); give {FORMS}") from None


def make_map(entries: Sequence[tuple[str, Any]], *, ignore: int | None = IGNORED) -> ClassMap:
    """Build a class map from values or colours; "ignore", "void" and "unlabeled" are ignored."""
    colours = [isinstance(code, list | tuple) for _, code in entries]
    if any(colours) and not all(colours):
        raise ValueError("some classes have a value and some a colour; use either values or colours for all of them")
    codes = [(name, _code(code)) for name, code in entries]
    left = [code for name, code in codes if name.lower() in ("ignore", "void", "unlabeled", "unlabelled")]
    kept = [(name, code) for name, code in codes if code not in left]
    known = {code for _, code in kept}
    if ignore is not None and not any(colours) and ignore not in known:
        left.append(ignore)
    names, values = tuple(name for name, _ in kept), tuple(code for _, code in kept)
    return ClassMap(names, values, colours=bool(colours) and all(colours), ignore=tuple(left))


def guess_map(found: Iterable[int], *, ignore: int | None = IGNORED) -> tuple[ClassMap, tuple[str, ...]]:
    """Guess classes from the values in masks; return them and remarks.

    Masks of only 0 and 255 have two classes; otherwise 255 is ignored.
    """
    values = sorted(set(found))
    if values == [0, 255] and ignore == IGNORED:
        note = (
            "masks have the values 0 and 255: assuming two classes, background and foreground; override with a class "
            "file"
        )
        return ClassMap(("background", "foreground"), (0, 255), ignore=()), (note,)
    kept = [value for value in values if value != ignore]
    if len(kept) > GUESSED:
        raise ValueError(
            f"masks have {len(kept)} different values from {kept[0]} to {kept[-1]}, too many for classes without "
            f"names (possibly because edges were smoothed when masks were resized); correct the masks, or add {FORMS}"
        )
    names = tuple(f"class {value}" for value in kept)
    seen = abbreviate([str(value) for value in kept], 20)
    note = f"classes are numbered by the values in the masks: {seen}; add {FORMS} to name them"
    return ClassMap(names, tuple(kept), ignore=() if ignore is None else (ignore,)), (note,)


def _code(code: Any) -> int:
    if isinstance(code, list | tuple):
        if len(code) != 3 or not all(type(part) is int and 0 <= part <= 255 for part in code):
            raise ValueError(f"the colour {code!r}; it must be three whole numbers from 0 to 255")
        return code[0] << 16 | code[1] << 8 | code[2]
    if type(code) is not int or not 0 <= code <= 65535:
        raise ValueError(f"the value {code!r}; it must be a whole number from 0 to 65535")
    return code


def _from_json(content: Any) -> list[tuple[str, Any]]:
    if isinstance(content, Mapping):
        if all(isinstance(name, str) and name.isdecimal() for name in content):  # {"0": "sky"}
            return [(str(name), int(value)) for value, name in content.items()]
        return [(str(name), code) for name, code in content.items()]
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        return [(name, place) for place, name in enumerate(content)]
    raise ValueError("it holds neither a mapping from names to values nor a list of names")


def _from_csv(text: str) -> list[tuple[str, Any]]:
    file = io.StringIO(text, newline="")
    rows = [{(key or "").strip().lower(): (cell or "").strip() for key, cell in row.items() if key is not None}
            for row in csv.DictReader(file, delimiter=find_delimiter(file, Path()))]  # fmt: skip
    if not rows:
        return []
    names = next((key for key in ("name", "class", "label") if key in rows[0]), None)
    if names is None:
        raise ValueError(f"it has the columns {', '.join(rows[0])}, but no column name")
    if {"r", "g", "b"} <= rows[0].keys():
        return [(row[names], [int(row[part]) for part in "rgb"]) for row in rows]
    value = next((key for key in ("value", "id", "index") if key in rows[0]), None)
    if value is None:
        raise ValueError("it has neither the column value nor the columns r, g and b")
    return [(row[names], int(row[value])) for row in rows]


def _from_lines(lines: Sequence[str]) -> list[tuple[str, Any]]:
    """Read one name per line, or `name:r,g,b::` as in CVAT."""
    entries: list[tuple[str, Any]] = []
    for line in (line.strip() for line in lines):
        if not line or line.startswith("#"):
            continue
        name, colon, rest = line.partition(":")
        if colon and rest.count(",") >= 2:
            entries.append((name, [int(part) for part in rest.split(":")[0].split(",")]))
        else:
            entries.append((line, len(entries)))
    return entries
