"""Small images and sets for tests of data."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed: int, height: int = 24, width: int = 32) -> np.ndarray:
    """Return a smooth image of its own, so that JPEG keeps it nearly as it is."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def encoded(seed: int, format: str = "JPEG", height: int = 24, width: int = 32, **options: object) -> bytes:
    """Return an encoded image."""
    file = io.BytesIO()
    Image.fromarray(pixels(seed, height, width)).save(file, format, **options)
    return file.getvalue()


def class_folders(
    root: Path, counts: dict[str, int], start: int = 0, suffix: str = ".jpg", *, size: tuple[int, int] = (24, 32)
) -> int:
    """Write class folders of different images; return the number after the last."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / name / f"{number}{suffix}").write_bytes(encoded(start, height=size[0], width=size[1]))
            start += 1
    return start


def write_shard(path: Path, samples: list[tuple[str, bytes, str]], label: str = "cls") -> None:
    """Write a tar of (key, image, label)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, image, text in samples:
            for kind, content in (("jpg", image), (label, text.encode())):
                info = tarfile.TarInfo(f"{key}.{kind}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
