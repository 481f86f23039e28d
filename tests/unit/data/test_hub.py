"""Hugging Face datasets, saved to disk, in Parquet, by name and streamed; nothing is fetched here."""

import pickle

import numpy as np
import pytest

from saccade.data.hub import HubStream
from saccade.data.image import BadSample
from saccade.data.open import open_data
from support.images import encoded, pixels

datasets = pytest.importorskip("datasets")
ALONE = {"rank": 0, "world": 1, "worker": 0, "workers": 1}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def make(count, start=0, named=True):
    label = datasets.ClassLabel(names=["cat", "dog"]) if named else datasets.Value("string")
    labels = [n % 2 if named else ("cat", "dog")[n % 2] for n in range(count)]
    rows = {"image": [{"bytes": encoded(start + n, "PNG"), "path": None} for n in range(count)], "label": labels}
    return datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image(), "label": label}))


def check(data, train, val):
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.val)) == (train, val)
    np.testing.assert_array_equal(data.train.read(2), pixels(2))
    assert data.train.labels[:3].tolist() == [0, 1, 0]


def test_saved_dataset_with_splits_opens(tmp_path):
    datasets.DatasetDict({"train": make(6), "test": make(4, 10)}).save_to_disk(str(tmp_path / "set"))
    data = open_data(str(tmp_path / "set"))
    check(data, 6, 4)
    assert "'test' is used for validation" in data.notes[0]
    copy = pickle.loads(pickle.dumps(data.train.subset([4, 2])))
    np.testing.assert_array_equal(copy.read(1), pixels(2))
    assert copy.name(1) == "train[2]"


def test_saved_dataset_without_splits_is_split(tmp_path):
    make(20, named=False).save_to_disk(str(tmp_path / "set"))
    data = open_data(str(tmp_path / "set"))
    assert data.classes == ("cat", "dog")
    assert data.val.counts().tolist() == [1, 1]


def test_parquet_with_images_opens_as_a_file_and_as_a_folder(tmp_path):
    (tmp_path / "set" / "data").mkdir(parents=True)
    for split, count in (("train", 6), ("validation", 4)):
        make(count).to_parquet(str(tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet"))
    check(open_data(str(tmp_path / "set")), 6, 4)
    alone = open_data(str(tmp_path / "set" / "data" / "train-00000-of-00001.parquet"), val_share=0.34)
    assert (len(alone.train), len(alone.val)) == (4, 2)


def test_bad_rows_are_bad_images(tmp_path):
    rows = {"image": [{"bytes": b"text", "path": None}, None, {"bytes": encoded(0), "path": None}], "label": [0, 1, 0]}
    label = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"image": datasets.Image(), "label": label})
    sets = {"train": datasets.Dataset.from_dict(rows, features=features), "val": make(2)}
    datasets.DatasetDict(sets).save_to_disk(str(tmp_path / "set"))
    train = open_data(str(tmp_path / "set")).train
    for index in (0, 1):
        with pytest.raises(BadSample) as caught:
            train.read(index)
        assert caught.value.name == f"train[{index}]"
    assert train.read(2).shape == (24, 32, 3)


def test_dataset_without_the_columns_is_refused(tmp_path):
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(ValueError, match="has the columns 'text'; it needs a column of images"):
        open_data(str(tmp_path / "set"))


@pytest.fixture
def published(monkeypatch):
    """Stand in for the hub: one set, by name and configuration."""

    def load(name, config, *, split=None, streaming=False):
        assert (name, config) == ("some/set", "small")
        found = datasets.DatasetDict({"train": make(30), "validation": make(4, 50)})
        if streaming:
            return {name: part.to_iterable_dataset(num_shards=3) for name, part in found.items()}
        return found[split] if split else found

    monkeypatch.setattr(datasets, "load_dataset", load)


def test_name_and_configuration_are_passed_on(published):
    check(open_data("hf:some/set:small"), 30, 4)
    with pytest.raises(ValueError, match="names no dataset"):
        open_data("hf:")


def test_stream_is_shared_out_shuffled_and_repeatable(published):
    data = open_data("hf-stream:some/set:small", buffer=8)
    stream = data.train
    assert len(data.val) == 4

    def read(epoch=0, skip=0, **reader):
        return list(stream.samples(seed=0, epoch=epoch, skip=skip, **(ALONE | reader)))

    whole = read()
    order = [sample.name for sample in whole]
    assert sorted(order) == sorted(f"train[{n}]" for n in range(30))
    for sample in whole:
        number = int(sample.name[6:-1])
        assert sample.target == number % 2
        np.testing.assert_array_equal(sample.inputs["image"], pixels(number))
    assert [sample.name for sample in read()] == order
    assert [sample.name for sample in read(skip=11)] == order[11:]
    assert {s.name: s.key for s in read(epoch=1)} == {s.name: s.key for s in whole}
    assert [sample.name for sample in read(epoch=1)] != order
    parts = [read(rank=rank, world=2, worker=worker, workers=2) for rank in range(2) for worker in range(2)]
    assert sorted(sample.name for part in parts for sample in part) == sorted(order)


@pytest.mark.parametrize("label", [None, -1])
def test_row_of_a_stream_without_a_valid_label_is_a_bad_image(label):
    rows = {"image": [{"bytes": encoded(n, "PNG"), "path": None} for n in range(4)], "label": [0, 1, label, 1]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    dataset = datasets.Dataset.from_dict(rows, features=features).to_iterable_dataset()
    got = list(HubStream(dataset, prefix="train", buffer=1).samples(seed=0, epoch=0, **ALONE))
    assert [getattr(sample, "target", None) for sample in got] == [0, 1, None, 1]
    assert isinstance(got[2], BadSample)
    assert got[2].name == "train[2]"
    assert "label" in got[2].reason


def test_a_stream_whose_card_tells_no_sizes_is_counted_at_the_first_opening(tmp_path):
    (tmp_path / "set").mkdir()
    for split in ("train", "validation"):
        make(5).to_parquet(str(tmp_path / "set" / f"{split}-00000-of-00001.parquet"))
    assert [open_data(f"hf-stream:{tmp_path / 'set'}").train.length for _ in range(2)] == [5, 5]
