"""Data of a stranger: nothing hangs, nothing fills the memory, and nothing else of the machine is read."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from saccade.data import image as images
from saccade.data.folder import open_folder
from saccade.data.image import BadSample, decode
from saccade.data.open import open_data
from saccade.support.files import NotRegularError, open_regular
from support.hostile import within
from support.images import class_folders, encoded


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
