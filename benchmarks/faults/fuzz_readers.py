"""Kinds of samples to be damaged by `fuzz.py`: images, shards and lists."""

import csv
import io
import tarfile

import numpy as np
from benchmarks.faults.fuzz_tasks import read_all
from benchmarks.faults.mutate import as_text, mutate, twist
from PIL import Image


class Images:
    """One image, decoded from bytes and from a file."""

    def __init__(self, folder):
        self.folder, self.seeds = folder, []
        pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 4), np.uint8)
        for kind, mode in (
            ("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("PNG", "I;16"),
            ("WEBP", "RGB"), ("WEBP", "RGBA"), ("GIF", "P"), ("BMP", "RGB"), ("TIFF", "RGB"), ("TIFF", "F"),
        ):  # fmt: skip
            for options in ({}, {"compression": "tiff_lzw"} if kind == "TIFF" else {"progressive": True}):
                file = io.BytesIO()
                image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257) if mode == "I;16" else None
                (image or Image.fromarray(pixels).convert(mode)).save(file, kind, **options)
                self.seeds.append(file.getvalue())

    def __call__(self, draw):
        from saccade.data.image import decode, header

        data = mutate(draw.choice(self.seeds), draw)
        (self.folder / "a.jpg").write_bytes(data)
        for read in (lambda: header(data, name="a"), lambda: decode(self.folder / "a.jpg", name="a", at_least=16)):
            try:
                read()
            finally:
                pass


class Shards:
    """A tar of images and labels, listed and read."""

    def __init__(self, folder):
        self.folder, self.image = folder, Images(folder).seeds[0]

    def __call__(self, draw):
        from saccade.data.open import open_data

        path = self.folder / "train-000.tar"
        kind = draw.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
        with tarfile.open(path, "w", format=kind) as archive:
            for number in range(8):
                stem = f"{'deep/' * draw.choice((0, 0, 30))}{number}"
                label = draw.choice(("cls", "json"))
                text = as_text(twist({"label": number % 2}, draw), draw) if draw.random() < 0.1 else str(number % 2)
                for name, data in ((f"{stem}.jpg", self.image), (f"{stem}.{label}", text.encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        path.write_bytes(mutate(path.read_bytes(), draw) if draw.random() < 0.8 else path.read_bytes())
        read_all(open_data(str(path), val_share=0.3))


class Lists:
    """A CSV, an .npz archive, an idx file or a Parquet file, opened and read."""

    def __init__(self, folder):
        self.folder, self.data = folder, Images(folder).seeds[0]
        for number in range(8):
            (folder / f"{number}.jpg").write_bytes(self.data)
        images = np.zeros((8, 8, 8, 3), np.uint8)
        np.savez_compressed(folder / "sound.npz", x_train=images, y_train=np.arange(8) % 2)
        np.savez(folder / "plain.npz", x_train=images, y_train=np.arange(8) % 2, classes=np.array(["a", "b"]))
        self.archives = [(folder / name).read_bytes() for name in ("sound.npz", "plain.npz")]
        for name in ("sound.npz", "plain.npz"):
            (folder / name).unlink()
        self.parquet = self._parquet()

    def _parquet(self):
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError:
            return None
        file = io.BytesIO()
        columns = {"path": [f"{number}.jpg" for number in range(8)], "label": ["a", "b"] * 4}
        parquet.write_table(arrow.table(columns), file)
        return file.getvalue()

    def __call__(self, draw):
        from saccade.data.open import open_data

        match draw.choice(("csv", "csv", "npz", "idx", "parquet")):
            case "csv":
                rows = [["path", "label", "split"]]
                rows += [[f"{n}.jpg", "ab"[n % 2], "val" if n > 5 else "train"] for n in range(8)]
                twisted = twist(rows, draw)
                twisted = twisted if isinstance(twisted, list) else []
                rows = [row if isinstance(row, list) else [str(row)] for row in twisted]
                text = io.StringIO()
                csv.writer(text).writerows([[str(cell) for cell in row] for row in rows])
                path, data = self.folder / "list.csv", text.getvalue().encode(errors="surrogatepass")
                path.write_bytes(mutate(data, draw) if draw.random() < 0.5 else data)
            case "npz":
                path = self.folder / "set.npz"
                path.write_bytes(mutate(draw.choice(self.archives), draw))
            case "idx":
                path = self.folder / "idx"
                path.mkdir(exist_ok=True)
                for part in ("train", "t10k"):
                    pixels = b"\0\0\x08\x03" + np.array([4, 8, 8], ">u4").tobytes() + bytes(256)
                    labels = b"\0\0\x08\x01" + np.array([4], ">u4").tobytes() + bytes((0, 1, 0, 1))
                    (path / f"{part}-images-idx3-ubyte").write_bytes(mutate(pixels, draw))
                    (path / f"{part}-labels-idx1-ubyte").write_bytes(labels)
            case "parquet":
                path = self.folder / "list.parquet"
                path.write_bytes(mutate(self.parquet or b"", draw))
        try:
            read_all(open_data(str(path), val_share=0.3, bad_limit=0.9))
        finally:
            path.unlink() if path.is_file() else None
