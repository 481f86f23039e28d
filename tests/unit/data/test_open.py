"""One word opens any set; what cannot be opened says what to give instead."""

import numpy as np
import pytest
from PIL import Image

from saccade.data.open import open_data


def test_nothing_opens_the_embedded_set():
    data = open_data()
    assert (len(data.train), len(data.val)) == (4000, 1000)
    assert data.train.counts().tolist() == [400] * 10
    assert data.val.counts().tolist() == [100] * 10
    assert data.classes[0] == "T-shirt/top"
    assert data.train.array().shape == (4000, 28, 28, 1)
    assert data.val.fingerprint() == open_data("embedded").val.fingerprint()
    assert 0.25 < data.train.array().mean() / 255 < 0.32  # the whole set's mean is 0.286


def test_embedded_images_of_both_splits_differ():
    data = open_data()
    train = {image.tobytes() for image in data.train.array()}
    assert not any(image.tobytes() in train for image in data.val.array())


@pytest.mark.parametrize("name", ["cifar10", "CIFAR-100", "mnist", "fashion_mnist", "imagenet"])
def test_known_name_says_what_to_give(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"not downloaded automatically; give .*directory"):
        open_data(name)


def test_missing_path_is_named_with_what_is_allowed():
    with pytest.raises(FileNotFoundError, match=r"'/no/such/folder' does not exist; give a directory of class folders"):
        open_data("/no/such/folder")


def test_file_of_unknown_kind_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match="unknown kind"):
        open_data(str(tmp_path / "notes.txt"))
    (tmp_path / "data_batch_1.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="give the directory"):
        open_data(str(tmp_path / "data_batch_1.bin"))


@pytest.mark.parametrize("spec", ["hf:any", "list.parquet"])
def test_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, spec):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr("saccade.data.table.import_module", refuse)
    if spec.endswith(".parquet"):
        spec = str(tmp_path / spec)
        (tmp_path / "list.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match=r"saccade\[stream\]"):
        open_data(spec)


def test_held_out_arrays_stay_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 8, 8), np.uint8), y=np.arange(20) % 2)
    data = open_data(str(tmp_path / "a.npz"))
    assert data.train.array().shape == (18, 8, 8, 1)
    assert data.name == "a.npz"


@pytest.mark.parametrize(("top", "remark"), [(4_095, "refused as black"), (16_383, "dark"), (65_535, None)])
def test_set_of_images_that_use_few_of_their_sixteen_bits_is_noted(tmp_path, top, remark):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(4):
            values = np.linspace(number, top, 400).astype(np.uint16).reshape(20, 20)
            Image.fromarray(values).save(tmp_path / name / f"{number}.png")
    notes = [note for note in open_data(str(tmp_path)).notes if "have 16 bits" in note]
    assert [remark in note for note in notes] == ([True] if remark else [])
