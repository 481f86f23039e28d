"""Data of a stranger: nothing hangs, nothing fills the memory, and nothing else of the machine is read."""

import gzip
import io
import os
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile

import numpy as np
import pytest
from PIL import Image

from saccade.data import image as images
from saccade.data import tar
from saccade.data.arrays import read_idx
from saccade.data.folder import open_folder
from saccade.data.image import BadSample, decode
from saccade.data.npz import open_npz
from saccade.data.open import open_data
from saccade.data.tar import TarError, members, number_classes, shard_entries
from saccade.support.files import NotRegularError, open_regular
from support.images import class_folders, encoded, write_shard


def within(function, seconds=20):
    """Return what a function returns or raises, or fail if it takes too long."""
    done = []

    def work():
        try:
            done.append(function())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, "it did not come to an end"
    return done[0]


def raw_header(name=b"a.jpg", *, size=0, kind=b"0"):
    """Return a tar header, its size in base 256 where it is negative."""
    info = tarfile.TarInfo(name.decode())
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size.to_bytes(12, "big", signed=True) if size < 0 else b"%011o\0" % size
    block[156:157] = kind
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_a_negative_size_in_a_tar_header_is_damage(tmp_path):
    (tmp_path / "a.tar").write_bytes(raw_header(size=-512) + bytes(10_240))
    with (tmp_path / "a.tar").open("rb") as file:
        found = within(lambda: list(members(file)))
    assert isinstance(found, TarError)
    assert "-512 bytes" in str(found)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_names_longer_than_any_file_systems_are_not_read(tmp_path, kind):
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(raw_header(size=3 * 2**30, kind=kind))
        file.truncate(4 * 2**30)  # a hole: takes no disk
    with path.open("rb") as file, pytest.raises(TarError, match="a name of 3221225472 bytes"):
        list(members(file))


def test_many_records_before_a_name_take_no_time(tmp_path):
    records = b"4 =\n" * 16_000
    content = records + b"%d path=long.jpg\n" % 17
    assert len(content) <= tar.NAME_BYTES
    (tmp_path / "a.tar").write_bytes(
        raw_header(size=len(content), kind=tarfile.XHDTYPE)
        + content
        + bytes(-len(content) % 512)
        + raw_header(size=0)
        + bytes(1024)
    )
    with (tmp_path / "a.tar").open("rb") as file:
        (member,) = within(lambda: list(members(file)), 10)
    assert member.name == "long.jpg"


def test_digits_without_end_are_no_length(tmp_path):
    content = b"9" * 60_000
    (tmp_path / "a.tar").write_bytes(
        raw_header(size=len(content), kind=tarfile.XHDTYPE) + content + bytes(-len(content) % 512) + bytes(1024)
    )
    with (tmp_path / "a.tar").open("rb") as file:
        assert list(members(file)) == []


@pytest.mark.parametrize("label", ["[" * 50_000, "9" * 50_000, "x" * 2_000_000])
def test_labels_that_no_writer_makes_are_bad_samples(tmp_path, label):
    for kind in ("cls", "json"):
        path = tmp_path / f"{kind}.tar"
        write_shard(path, [("a", encoded(1), label), ("b", encoded(2), "1")], label=kind)
        bad, good = shard_entries(path, 0, ["0", "1"])
        assert isinstance(bad, BadSample)
        assert len(bad.reason) < 2000
        assert good.label == 1


def test_an_image_in_a_shard_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tar, "MAX_BYTES", 100)
    write_shard(tmp_path / "a.tar", [("a", encoded(1), "0")])
    (bad,) = shard_entries(tmp_path / "a.tar", 0, ["0", "1"])
    assert bad.kind == "huge"


def test_a_label_beyond_all_classes_does_not_name_all_before_it(tmp_path):
    write_shard(tmp_path / "a.tar", [("a", encoded(1), "0"), ("b", encoded(2), "99999999999")])
    with pytest.raises(ValueError, match="label 99999999999; classes are numbered from 0, with at most"):
        number_classes([tmp_path / "a.tar"])
    images, labels = np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 10**12])
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels)
    with pytest.raises(ValueError, match="label 1000000000000"):
        open_npz([tmp_path / "a.npz"])


def odd_files(folder):
    """Make what is no regular file: a pipe, a link to a device, a folder."""
    os.mkfifo(folder / "pipe.jpg")
    (folder / "device.jpg").symlink_to("/dev/zero")
    (folder / "folder.jpg").mkdir()
    return [folder / name for name in ("pipe.jpg", "device.jpg", "folder.jpg")]


def test_only_regular_files_are_opened(tmp_path):
    for path in odd_files(tmp_path):
        assert isinstance(within(lambda path=path: open_regular(path), 5), NotRegularError)
        bad = within(lambda path=path: decode(path, name=path.name), 5)
        assert isinstance(bad, BadSample)
        assert bad.kind == "foreign"
        assert "only regular files are read" in bad.reason


def test_a_pipe_and_a_device_in_a_class_folder_are_left_out_and_told(tmp_path):
    class_folders(tmp_path, {"cat": 6, "dog": 6})
    odd_files(tmp_path / "cat")
    data = within(lambda: open_data(str(tmp_path)))
    assert len(data.train) + len(data.val) == 12
    assert any("2 in cat are pipes, devices or sockets" in note for note in data.notes)


@pytest.mark.parametrize("name", ["train-000.tar", "a.npz", "train-images-idx3-ubyte", "a.parquet"])
def test_a_pipe_in_the_place_of_a_set_is_told(tmp_path, name):
    os.mkfifo(tmp_path / name)
    error = within(lambda: open_data(str(tmp_path)))
    assert isinstance(error, ValueError | OSError)


def test_a_file_that_is_too_large_for_an_image_is_refused_unread(tmp_path):
    path = tmp_path / "a.jpg"
    with path.open("wb") as file:
        file.write(encoded(1))
        file.truncate(images.MAX_BYTES + 1)
    with pytest.raises(BadSample, match="the limit") as caught:
        decode(path, name="a.jpg")
    assert caught.value.kind == "huge"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16", "tRNS"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_strips_of_a_large_image_are_what_the_whole_is(monkeypatch, mode, turn):
    values = np.random.default_rng(0).integers(0, 256, (37, 23, 4), np.uint8)
    image = Image.fromarray(values[..., :3])
    options = {}
    if mode == "RGBA":
        image = Image.fromarray(values)
    elif mode == "I;16":
        image = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    elif mode == "tRNS":
        options = {"transparency": tuple(map(int, values[3, 3, :3]))}
    else:
        image = image.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = turn
    file = io.BytesIO()
    image.save(file, "TIFF" if mode == "CMYK" else "PNG", exif=exif, **options)
    whole = decode(file.getvalue(), name="a")
    monkeypatch.setattr(images, "STRIP", 100)
    np.testing.assert_array_equal(decode(file.getvalue(), name="a"), whole)
    flipped = {2: lambda a: a[:, ::-1], 3: lambda a: np.rot90(a, 2), 6: lambda a: np.rot90(a, -1), 8: np.rot90}
    if mode == "RGB" and turn in flipped:
        np.testing.assert_array_equal(whole, flipped[turn](values[..., :3]))


def test_a_large_transparent_image_takes_little_more_than_its_pixels(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path; from saccade.data.image import decode;"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024;"
        "before = peak(); decode(Path(sys.argv[1]), name='a'); print(peak() - before)"
    )
    Image.new("RGBA", (8000, 6000), (1, 2, 3, 100)).save(tmp_path / "a.png", compress_level=1)
    told = subprocess.run([sys.executable, "-c", code, tmp_path / "a.png"], capture_output=True, text=True, check=True)
    assert float(told.stdout) < 10 * 48  # MiB: four bytes a pixel decoded, three as they are returned


def test_archives_that_unpack_to_more_than_the_memory_are_not_unpacked(tmp_path, monkeypatch):
    for module in ("arrays", "npz"):
        monkeypatch.setattr(f"saccade.data.{module}.physical_memory", lambda: 2**20)
    np.savez_compressed(tmp_path / "a.npz", x_train=np.zeros((1000, 64, 64), np.uint8), y_train=np.zeros(1000, int))
    with pytest.raises(ValueError, match="unpacks to 4104"):
        open_npz([tmp_path / "a.npz"])
    bomb = b"\0\0\x08\x03" + struct.pack(">III", 1000, 64, 64) + bytes(4_096_000)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bomb))
    with pytest.raises(ValueError, match="4096000 bytes"):
        read_idx(tmp_path / "train-images-idx3-ubyte.gz")


def test_more_than_an_idx_file_announces_is_not_unpacked(tmp_path):
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 3) + bytes(50_000_000)))
    with pytest.raises(ValueError, match="more than 3 bytes of content"):
        read_idx(path)


@pytest.mark.parametrize("meta", [b"{}", b"[" * 100_000, b'{"tile": 0, "grid": 0}', b'{"tile": "x", "grid": 1}', b"5"])
def test_mosaics_that_are_described_wrongly_are_told(tmp_path, meta):
    tiles = np.frombuffer(encoded(1, "WEBP"), np.uint8)
    arrays = {"train_webp_000": tiles, "train_labels": np.arange(2), "meta_json": np.frombuffer(meta, np.uint8)}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=r"a\.npz cannot be read"):
        open_npz([tmp_path / "a.npz"])


def test_an_array_that_claims_more_than_its_file_holds_is_told(tmp_path):
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (9000000000000, 64, 64), }"
    data = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header.encode()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x_train.npy", data)
        archive.writestr("y_train.npy", data)
    with pytest.raises(ValueError, match=r"a\.npz cannot be read"):
        open_npz([tmp_path / "a.npz"])


def test_links_that_bring_in_other_classes_are_told(tmp_path):
    class_folders(tmp_path / "set", {"cat": 4, "dog": 4})
    class_folders(tmp_path / "elsewhere", {"bird": 2})
    root = tmp_path / "set"
    (root / "cat" / "more").symlink_to(root / "dog")
    (root / "cat" / "birds").symlink_to(tmp_path / "elsewhere" / "bird")
    target = next((root / "cat").glob("*.jpg"))
    (root / "dog" / "linked.jpg").symlink_to(target)
    notes = " | ".join(open_data(str(root)).notes)
    assert "cat/more points to dog" in notes
    assert "cat/birds points to" in notes
    assert "dog/linked.jpg points to cat" in notes


def test_a_class_folder_whose_name_is_no_text_is_told(tmp_path):
    class_folders(tmp_path, {"cat": 4, "dog": 4})
    os.mkdir(os.fsencode(tmp_path) + b"/v\xf6gel")
    with pytest.raises(ValueError, match=r"class folder whose name is not UTF-8: v\\udcf6gel; rename it"):
        open_data(str(tmp_path))


def test_a_folder_that_may_not_be_listed_is_told(tmp_path, monkeypatch):
    class_folders(tmp_path, {"cat": 4, "dog": 4})
    (tmp_path / "cat" / "more").mkdir()
    real = os.scandir

    def deny(path, denied="more"):
        if os.path.basename(path) == denied:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", deny)
    assert any("cannot be read, ignored: " in note and "cat/more" in note for note in open_data(str(tmp_path)).notes)
    monkeypatch.setattr(os, "scandir", lambda path: deny(path, "dog"))
    with pytest.raises(PermissionError, match=r"cannot be read, ignored: 'dog'"):
        open_folder(tmp_path)
    monkeypatch.setattr(os, "scandir", lambda path: deny(path, tmp_path.name))
    with pytest.raises(PermissionError, match="cannot be read: permission denied; give the user"):
        open_folder(tmp_path)


def test_links_in_a_circle_are_bad_images(tmp_path):
    class_folders(tmp_path, {"cat": 4, "dog": 4})
    (tmp_path / "cat" / "round.jpg").symlink_to("round.jpg")
    (tmp_path / "round").symlink_to("round")
    source = open_data(str(tmp_path)).train
    (index,) = [index for index in range(len(source)) if "round" in source.name(index)] or [None]
    if index is not None:
        with pytest.raises(BadSample):
            source.read(index)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Return a function that writes rows to a Parquet file and opens it."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def write(images):
        features = datasets.Features(
            {
                "image": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")},
                "label": datasets.Value("int64"),
            }
        )
        made = datasets.Dataset.from_dict(
            {"image": images, "label": [row % 2 for row in range(len(images))]}, features=features
        )
        (tmp_path / "set").mkdir(exist_ok=True)
        made.to_parquet(str(tmp_path / "set" / "train.parquet"))
        return open_data(str(tmp_path / "set" / "train.parquet"), val_share=0.25)

    return write


def test_a_row_names_no_file_outside_of_its_set(tmp_path, rows):
    (tmp_path / "secret.jpg").write_bytes(encoded(1))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "own.jpg").write_bytes(encoded(2))
    (tmp_path / "set" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    stored = [{"bytes": encoded(seed), "path": None} for seed in range(8)]
    named = [str(tmp_path / "secret.jpg"), "../secret.jpg", "link.jpg", "a\0b", "own.jpg"]
    data = rows([*({"bytes": None, "path": name} for name in named), *stored])
    found = {}
    for source in (data.train, data.val):
        for index in range(len(source)):
            row = int(source.name(index).split("[")[1][:-1])
            try:
                found[row] = source.read(index).shape
            except BadSample as bad:
                found[row] = bad.reason
    for row in range(3):
        assert "outside the dataset" in found[row]
    assert "does not exist" in str(found[3])
    assert all(found[row] == (24, 32, 3) for row in range(4, 13))


def test_a_damaged_parquet_file_is_told(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(ValueError, match="Parquet"):
        open_data(str(tmp_path))


def test_a_link_inside_of_its_class_is_not_told(tmp_path):
    class_folders(tmp_path, {"cat": 4, "dog": 4})
    (tmp_path / "cat" / "again.jpg").symlink_to(next((tmp_path / "cat").glob("*.jpg")))
    assert "points to" not in " ".join(open_data(str(tmp_path)).notes)
