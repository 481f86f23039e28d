"""Sets published as arrays open from their usual files, and damaged ones say so."""

import gzip
import io
import json
import pickle

import numpy as np
import pytest
from PIL import Image

from saccade.data.arrays import CIFAR10, FASHION, read_idx
from saccade.data.open import open_data
from saccade.data.source import ArraySource


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def some_images(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_idx(folder, packed=True):
    folder.mkdir(parents=True)
    arrays = {}
    for stem, count in (("train", 20), ("t10k", 10)):
        arrays[stem] = some_images(count, 28, 28), np.arange(count, dtype=np.uint8) % 10
        for name, array in zip(("images-idx3", "labels-idx1"), arrays[stem], strict=True):
            data = idx(array)
            path = folder / f"{stem}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_open(tmp_path, packed):
    arrays = write_idx(tmp_path / "Fashion-mnist", packed)
    data = open_data(str(tmp_path / "Fashion-mnist"))
    assert data.classes == FASHION
    np.testing.assert_array_equal(data.train.array()[..., 0], arrays["train"][0])
    np.testing.assert_array_equal(data.val.labels, arrays["t10k"][1])
    assert data.train.read(3).shape == (28, 28, 1)
    assert "test images are used" in data.notes[0]
    write_idx(tmp_path / "digits", packed)
    assert open_data(str(tmp_path / "digits")).classes == tuple("0123456789")


def test_damaged_or_missing_idx_file_is_named(tmp_path):
    write_idx(tmp_path / "set")
    path = tmp_path / "set" / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"text", gzip.compress(gzip.decompress(whole)[:-5]), gzip.compress(b"")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
            read_idx(path)
    path.unlink()
    with pytest.raises(ValueError, match="lacks the idx files train-images"):
        open_data(str(tmp_path / "set"))


def write_cifar10(folder):
    folder.mkdir(parents=True)
    images = some_images(6, 3, 32, 32)
    labels = np.array([3, 0, 9, 1, 2, 4], np.uint8)
    for number in range(6):
        name = "test_batch.bin" if number == 5 else f"data_batch_{number + 1}.bin"
        (folder / name).write_bytes(labels[number].tobytes() + images[number].tobytes())
    return images.transpose(0, 2, 3, 1), labels


def test_cifar10_binary_opens_from_its_folder_or_the_one_above(tmp_path):
    images, labels = write_cifar10(tmp_path / "cifar-10-batches-bin")
    for folder in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        data = open_data(str(folder))
        assert data.classes == CIFAR10
        np.testing.assert_array_equal(data.train.array(), images[:5])
        np.testing.assert_array_equal(data.train.labels, labels[:5])
        np.testing.assert_array_equal(data.val.array(), images[5:])


def test_cifar10_binary_cut_short_is_refused(tmp_path):
    write_cifar10(tmp_path / "set")
    path = tmp_path / "set" / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_2\.bin has 3072 bytes, which is not a multiple of 3073"):
        open_data(str(tmp_path / "set"))


def test_cifar100_binary_uses_fine_labels(tmp_path):
    images = some_images(3, 3, 32, 32)
    for name, rows in (("train.bin", [0, 1]), ("test.bin", [2])):
        (tmp_path / name).write_bytes(b"".join(bytes([7, 40 + row]) + images[row].tobytes() for row in rows))
    data = open_data(str(tmp_path))
    assert len(data.classes) == 100
    assert data.train.labels.tolist() == [40, 41]
    np.testing.assert_array_equal(data.val.array()[0], images[2].transpose(1, 2, 0))
    (tmp_path / "fine_label_names.txt").write_text("\n".join(f"kind {i}" for i in range(100)) + "\n\n")
    assert open_data(str(tmp_path)).classes[41] == "kind 41"


@pytest.mark.parametrize("names", [("data_batch_1", "batches.meta"), ("train", "test", "meta")])
def test_pickled_cifar_is_refused_without_being_opened(tmp_path, names):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    for name in names:
        (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="binary version"):
        open_data(str(tmp_path))
    assert not (tmp_path / "sprung").exists()


def test_strips_of_the_npm_package_open(tmp_path):
    images = some_images(12, 32, 32, 3)
    for number in range(6):
        name = "test_batch.png" if number == 5 else f"data_batch_{number + 1}.png"
        Image.fromarray(images[2 * number : 2 * number + 2].reshape(2, 1024, 3)).save(tmp_path / name)
    (tmp_path / "train_lables.json").write_text(json.dumps(list(range(10))))
    (tmp_path / "test_lables.json").write_text("[9, 0]")
    data = open_data(str(tmp_path))
    np.testing.assert_array_equal(data.train.array(), images[:10])
    assert data.train.labels.tolist() == list(range(10))
    assert data.val.labels.tolist() == [9, 0]


def archive(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize(
    "keys",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("X_train", "Y_train", "X_val", "Y_val"),
    ],
)
def test_npz_opens_under_its_usual_keys(tmp_path, keys):
    train, test = some_images(6, 8, 8, 3), some_images(4, 8, 8, 3, seed=1)
    values = train, np.arange(6)[:, None] % 3, test, np.array([2, 1, 0, 0])
    data = open_data(archive(tmp_path / "a.npz", **dict(zip(keys, values, strict=True))))
    assert data.classes == ("0", "1", "2")
    np.testing.assert_array_equal(data.train.array(), train)
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.val.labels.tolist() == [2, 1, 0, 0]


@pytest.mark.parametrize("kind", ["U", "S"])
def test_npz_labels_may_be_names(tmp_path, kind):
    arrays = {"x_train": some_images(4, 8, 8, 3), "x_val": some_images(2, 8, 8, 3, seed=1)}
    names = {"y_train": np.array(["dog", "ant", "dog", "cat"], kind), "y_val": np.array(["cat", "dog"], kind)}
    data = open_data(archive(tmp_path / "a.npz", **arrays, **names))
    assert data.classes == ("ant", "cat", "dog")
    assert data.train.labels.tolist() == [2, 0, 2, 1]
    assert data.val.labels.tolist() == [1, 2]
    ordered = open_data(archive(tmp_path / "b.npz", **arrays, **names, classes=["dog", "cat", "ant"]))
    assert ordered.classes == ("dog", "cat", "ant")
    assert ordered.val.labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="the labels 'ant' are not among the classes 'cat', 'dog'"):
        open_data(archive(tmp_path / "c.npz", **arrays, **names, classes=["cat", "dog"]))
    with pytest.raises(ValueError, match="some labels are names and others numbers"):
        open_data(archive(tmp_path / "d.npz", **arrays, **{**names, "y_val": np.array([0, 1])}))


def test_npz_without_a_split_is_split_by_number(tmp_path):
    path = archive(tmp_path / "a.npz", images=some_images(20, 3, 8, 9), labels=np.arange(20) % 2, classes=["no", "yes"])
    data = open_data(path, val_share=0.2)
    assert data.classes == ("no", "yes")
    assert data.val.counts().tolist() == [2, 2]
    assert data.train.array().shape == (16, 8, 9, 3)
    every = {data.train.name(i) for i in range(16)} | {data.val.name(i) for i in range(4)}
    assert every == {f"train[{i}]" for i in range(20)}


def test_npz_of_objects_is_refused_without_unpickling(tmp_path):
    objects = np.empty(2, dtype=object)
    objects[:] = [np.zeros((2, 2)), np.zeros((3, 3))]
    path = archive(tmp_path / "a.npz", x_train=objects, y_train=np.arange(2))
    with pytest.raises(ValueError, match="Python objects, which are pickles and not opened"):
        open_data(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": np.zeros((2, 8, 8, 3)), "y_train": np.arange(2)}, "float64"),
        ({"x_train": np.zeros((2, 8, 8, 3), np.uint8), "y_train": np.arange(3)}, "for 2 images"),
        ({"x_train": np.zeros((2, 8, 8, 3), np.uint8), "y_train": np.array([0.5, 1])}, "whole number"),
        ({"x_train": np.zeros((2, 8, 8, 3), np.uint8), "y_train": np.array([-1, 1])}, "from -1 to 1"),
        ({"weights": np.zeros(3)}, "it needs x_train and y_train"),
        ({"x_test": np.zeros((2, 8, 8, 3), np.uint8), "y_test": np.arange(2)}, "only 'test' images"),
    ],
)
def test_npz_with_unfit_arrays_is_refused(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        open_data(archive(tmp_path / "a.npz", **arrays))


def test_damaged_npz_is_refused(tmp_path):
    path = archive(tmp_path / "a.npz", x_train=some_images(9, 8, 8, 3), y_train=np.arange(9))
    data = (tmp_path / "a.npz").read_bytes()
    for content in (data[: len(data) // 2], b"text", b""):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz is not a NumPy archive, or is damaged"):
            open_data(path)


def mosaic(images: np.ndarray, grid: int) -> np.ndarray:
    rows = -(-len(images) // grid)
    tiles = np.zeros((rows * grid, *images.shape[1:]), np.uint8)
    tiles[: len(images)] = images
    size = images.shape[1]
    whole = tiles.reshape(rows, grid, size, size, 3).swapaxes(1, 2).reshape(rows * size, grid * size, 3)
    file = io.BytesIO()
    Image.fromarray(whole).save(file, "WEBP", lossless=True)
    return np.frombuffer(file.getvalue(), np.uint8)


def test_mosaics_in_parts_open_as_one_set_by_folder_or_by_commas(tmp_path):
    images, labels = some_images(30, 8, 8, 3), np.arange(30, dtype=np.uint8) % 3
    meta = np.frombuffer(json.dumps({"classes": ["a", "b", "c"], "grid": 4, "tile": 8}).encode(), np.uint8)
    first = {"train_webp_000": mosaic(images[:8], 4), "train_webp_001": mosaic(images[8:14], 4)}
    order = np.arange(30, dtype=np.uint16)[::-1]
    tested = {"test_webp_000": mosaic(images[25:], 4), "test_label": labels[25:], "test_index": order[25:]}
    one = archive(
        tmp_path / "a.npz", **first, train_label=labels[:14], train_index=order[:14], **tested, meta_json=meta
    )
    rest = {"train_webp_000": mosaic(images[14:25], 4), "train_label": labels[14:25], "train_index": order[14:25]}
    two = archive(tmp_path / "b.npz", **rest, meta_json=meta)
    assert len(open_data(one).train) == 14
    for spec in (str(tmp_path), f"{one},{two}"):
        data = open_data(spec)
        assert data.classes == ("a", "b", "c")
        np.testing.assert_array_equal(data.train.array(), images[:25])
        np.testing.assert_array_equal(data.val.array(), images[25:])
        assert data.train.name(20) == f"train[{order[20]}]"


def test_parts_of_different_sets_are_refused(tmp_path):
    for name in "ab":
        archive(tmp_path / f"{name}.npz", x=some_images(4, 8, 8, 3), y=np.arange(4) % 2, classes=[name, "c"])
    with pytest.raises(ValueError, match="different classes"):
        open_data(str(tmp_path))


def test_fingerprint_sees_pixels_labels_and_names_but_not_where_they_lie():
    images, labels = some_images(4, 8, 8, 3), np.array([0, 1, 0, 1])

    def source(images=images, labels=labels, **options):
        return ArraySource(images, labels, classes=("a", "b"), **options).fingerprint()

    changed = images.copy()
    changed[3, 7, 7, 2] ^= 1
    assert source() == source(images.copy(order="F"))
    assert len({source(), source(changed), source(labels=1 - labels), source(ids=np.arange(4) + 1)}) == 4


def test_subset_keeps_names_labels_and_pixels():
    source = ArraySource(some_images(6, 8, 8), np.arange(6) % 2, classes=("a", "b"), prefix="train")
    part = source.subset([4, 1]).subset([1, 0])
    assert [part.name(0), part.name(1)] == ["train[1]", "train[4]"]
    assert part.labels.tolist() == [1, 0]
    np.testing.assert_array_equal(part.read(1), source.read(4))
