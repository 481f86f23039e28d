"""Archives, arrays and shards of a stranger: no claim of theirs is believed before it is checked."""

import gzip
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from saccade.data import tar
from saccade.data.arrays import read_idx
from saccade.data.image import BadSample
from saccade.data.npz import open_npz
from saccade.data.tar import TarError, members, number_classes, shard_entries
from support.hostile import within
from support.images import encoded, write_shard


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
