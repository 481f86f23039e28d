"""CSV and Parquet lists, and what they can get wrong."""

import pytest

from saccade.data.image import BadSample
from saccade.data.open import open_data
from support.images import encoded


@pytest.fixture
def images(tmp_path):
    (tmp_path / "pics").mkdir()
    for number in range(8):
        (tmp_path / "pics" / f"ü {number}.jpg").write_bytes(encoded(number))
    return tmp_path


def write(folder, *lines, name="list.csv", encoding="utf-8"):
    (folder / name).write_text("\n".join(lines) + "\n", encoding=encoding)
    return str(folder / name)


def rows(*extra):
    return [",".join([f"pics/ü {n}.jpg", "cat" if n % 2 else "dog", *(e[n] for e in extra)]) for n in range(8)]


@pytest.mark.parametrize("columns", ["path,label", "image,class", " Filename , Label "])
def test_csv_opens_with_paths_relative_to_it(images, columns, monkeypatch):
    spec = write(images, columns, *rows(), encoding="utf-8-sig")
    monkeypatch.chdir("/")
    data = open_data(spec, val_share=0.25)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.val)) == (6, 2)
    assert data.train.read(0).shape == (24, 32, 3)
    assert data.train.name(0).startswith("pics/ü ")


def test_csv_with_splits(images):
    spec = write(images, "path,label,split", *rows(["train"] * 4 + ["valid"] * 2 + ["test"] * 2))
    data = open_data(spec)
    assert (len(data.train), len(data.val)) == (4, 2)
    assert data.val.labels.tolist() == [1, 0]


def test_tsv_and_absolute_paths(images):
    lines = [f"{images}/pics/ü {n}.jpg\t{n % 2}" for n in range(8)]
    data = open_data(write(images, "path\tlabel", *lines, name="list.tsv"))
    assert data.classes == ("0", "1")
    assert data.train.name(0).startswith("pics/")


def test_numeric_labels_are_ordered_as_numbers(images):
    lines = [f"pics/ü {n}.jpg,{(2, 10)[n % 2]}" for n in range(8)]
    assert open_data(write(images, "path,label", *lines)).classes == ("2", "10")


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        (["path,size", "a.jpg,3"], ValueError, r"columns 'path', 'size'; it needs a column named label or class"),
        (["name,label", "a.jpg,cat"], ValueError, r"it needs a column named path or image or file or filename"),
        (["path,label", "pics/ü 1.jpg,cat", "gone.jpg,dog"], FileNotFoundError, r"1 of 2 listed images .*'gone\.jpg'"),
        (["path,label", "pics/ü 1.jpg,"], ValueError, "row 1 has an empty path or label"),
        (["path,label", "pics/ü 1.jpg,cat,3"], ValueError, "row 1 has 3 fields, but the first line has 2"),
        (["path,label"], ValueError, "lists no images"),
        ([""], ValueError, "is empty"),
        (
            ["path,label,split", "pics/ü 1.jpg,cat,train", "pics/ü 2.jpg,dog,train", "pics/ü 3.jpg,cow,val"],
            ValueError,
            "labels that 'train' lacks: 'cow'",
        ),
        (["path,label,split", "pics/ü 1.jpg,cat,a"], ValueError, "one of them should be 'train'"),
    ],
)
def test_faulty_list_is_refused_with_the_reason(images, lines, error, message):
    with pytest.raises(error, match=message):
        open_data(write(images, *lines))


def test_binary_file_named_csv_is_refused(images):
    (images / "list.csv").write_bytes(b"\xff\xfe\x00\x80" * 10)
    with pytest.raises(ValueError, match="not a CSV file in UTF-8"):
        open_data(str(images / "list.csv"))


def test_image_listed_in_both_splits_is_noted(images):
    lines = [f"pics/ü {n}.jpg,{'ab'[n % 2]},{split}" for n in range(4) for split in ("train", "val")]
    data = open_data(write(images, "path,label,split", *lines))
    assert any("4 images are listed in both the training and the validation split" in note for note in data.notes)


def test_parquet_list_equals_csv_list(images):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = [f"pics/ü {n}.jpg" for n in range(8)]
    labels = ["cat" if n % 2 else "dog" for n in range(8)]
    parquet.write_table(pa.table({"path": paths, "label": labels, "other": [1.0] * 8}), images / "list.parquet")
    a, b = open_data(str(images / "list.parquet")), open_data(write(images, "path,label", *rows()))
    assert a.train.fingerprint() == b.train.fingerprint()
    parquet.write_table(pa.table({"path": paths, "size": [3] * 8}), images / "bad.parquet")
    with pytest.raises(ValueError, match="'size'; it needs a column named label"):
        open_data(str(images / "bad.parquet"))
    (images / "list.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="not a Parquet file"):
        open_data(str(images / "list.parquet"))


def many(folder, count=40, missing=()):
    (folder / "pics").mkdir(exist_ok=True)
    for number in set(range(count)) - set(missing):
        (folder / "pics" / f"{number}.jpg").write_bytes(encoded(number))
    return write(folder, "path,label", *(f"pics/{n}.jpg,{'ab'[n % 2]}" for n in range(count)))


def names(source):
    return [source.name(index) for index in range(len(source))]


def test_vanished_image_stays_in_its_place_and_is_named(tmp_path):
    spec = many(tmp_path)
    before = open_data(spec)
    (tmp_path / "pics" / "7.jpg").unlink()
    after = open_data(spec)
    assert names(after.train) == names(before.train)
    assert after.val.fingerprint() == before.val.fingerprint()
    assert any("1 of 40 listed images do not exist" in note and "pics/7.jpg" in note for note in after.notes)
    part = after.train if "pics/7.jpg" in names(after.train) else after.val
    with pytest.raises(BadSample) as caught:
        part.read(names(part).index("pics/7.jpg"))
    assert caught.value.kind == "missing"


def test_more_missing_images_than_the_limit_are_refused(tmp_path):
    spec = many(tmp_path, missing=(1, 2, 3))
    with pytest.raises(FileNotFoundError, match=r"3 of 40 listed images do not exist: 'pics/1\.jpg'.*relative to"):
        open_data(spec)
    assert open_data(spec, bad_limit=0.1).train.classes == ("a", "b")
    with pytest.raises(FileNotFoundError, match="40 of 40 listed images"):
        open_data(many(tmp_path / "pics", missing=range(40)), bad_limit=1.0)


@pytest.mark.parametrize("seed", range(6))
def test_image_listed_twice_falls_on_one_side_and_is_noted(tmp_path, seed):
    for number in range(12):
        (tmp_path / f"{number}.jpg").write_bytes(encoded(number))
    lines = [f"{n}.jpg,{'ab'[n % 2]}" for n in range(12)] * 2 + ["0.jpg,b", "./3.jpg,a"]
    data = open_data(write(tmp_path, "path,label", *lines), val_share=0.3, seed=seed)
    assert len(data.train) + len(data.val) == 26
    assert not set(names(data.train)) & set(names(data.val))
    assert any("12 images are listed more than once" in note for note in data.notes)
    assert any("2 images are listed with different labels: '0.jpg', '3.jpg'" in note for note in data.notes)


@pytest.mark.parametrize("folder", ["images", "img", "pictures", "photos"])
def test_images_that_are_listed_without_their_folder_are_found_in_one_of_the_documented_names(tmp_path, folder):
    (tmp_path / folder).mkdir()
    for number in range(12):
        (tmp_path / folder / f"{number}.jpg").write_bytes(encoded(number))
    data = open_data(write(tmp_path, "path,label", *(f"{n},{'ab'[n % 2]}" for n in range(12))))
    assert data.train.read(0).shape[2] == 3
    assert any(f"{folder}/NAME.jpg is read" in note for note in data.notes)
