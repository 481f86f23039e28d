"""Folders of class folders, and what is held out of them."""

import os
import pickle
import unicodedata
import zipfile

import numpy as np
import pytest

from saccade.data.image import BadSample
from saccade.data.open import open_data
from support.images import class_folders, encoded


def names(source):
    return [source.name(index) for index in range(len(source))]


def test_train_and_val_folders_are_found_and_labelled(tmp_path):
    class_folders(tmp_path / "train", {"dog": 3, "cat": 2})
    class_folders(tmp_path / "val", {"cat": 1, "dog": 2}, start=9)
    data = open_data(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert names(data.train) == [f"train/cat/{i}.jpg" for i in range(2)] + [f"train/dog/{i}.jpg" for i in range(3)]
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.val.labels.tolist() == [0, 1, 1]
    assert data.train.labels.dtype == np.int64
    assert data.train.read(0).shape == (24, 32, 3)
    assert data.train.array() is None


@pytest.mark.parametrize("split", ["valid", "validation", "Val"])
def test_other_names_of_the_validation_folder(tmp_path, split):
    class_folders(tmp_path / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / split, {"a": 1, "b": 1})
    class_folders(tmp_path / "test", {"a": 3, "b": 3})
    data = open_data(str(tmp_path))
    assert len(data.val) == 2
    assert "'test' is not used" in data.notes[0]


def test_test_folder_validates_if_there_is_no_other_and_the_notes_say_so(tmp_path):
    class_folders(tmp_path / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / "test", {"a": 3, "b": 3})
    data = open_data(str(tmp_path))
    assert len(data.val) == 6
    assert "no validation split: 'test' is used for validation" in data.notes[0]


def test_odd_names_nested_folders_and_hidden_files(tmp_path):
    class_folders(tmp_path, {"größe 1": 2, "猫": 2})
    (tmp_path / "猫" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "猫" / "deep" / "er" / "mit Leerzeichen ü.JPeG").write_bytes(encoded(50))
    (tmp_path / "猫" / ".hidden.jpg").write_bytes(b"")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.jpg").write_bytes(b"")
    (tmp_path / "猫" / "notes.txt").write_text("no image")
    data = open_data(str(tmp_path))
    assert data.classes == ("größe 1", "猫")
    every = sorted(names(data.train) + names(data.val))
    assert len(every) == 5
    assert "猫/deep/er/mit Leerzeichen ü.JPeG" in every
    for source in (data.train, data.val):
        for index in range(len(source)):
            assert source.read(index).shape == (24, 32, 3)


def test_class_names_match_across_spellings_of_one_letter(tmp_path):
    for split, form in (("train", "NFC"), ("val", "NFD")):
        class_folders(tmp_path / split, {unicodedata.normalize(form, "é"): 2, "b": 2})
    data = open_data(str(tmp_path))
    assert data.val.counts().tolist() == [2, 2]


def test_files_are_not_opened_when_listing(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.jpg").write_bytes(b"broken")
    data = open_data(str(tmp_path))
    with pytest.raises(BadSample) as caught:
        data.train.read(0)
    assert caught.value.name == data.train.name(0)


def test_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    class_folders(tmp_path, {"a": 12, "b": 12})
    first = open_data(str(tmp_path))
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda *a, **k: ((h, d, f[::-1]) for h, d, f in walk(*a, **k)))
    second = open_data(str(tmp_path))
    assert first.train.fingerprint() == second.train.fingerprint()
    assert first.val.fingerprint() == second.val.fingerprint()


def test_held_out_images_are_chosen_by_name_and_seed_and_stratified(tmp_path):
    class_folders(tmp_path / "one", {"a": 40, "b": 10, "c": 2, "d": 1})
    data = open_data(str(tmp_path / "one"), val_share=0.2)
    assert data.val.counts().tolist() == [8, 2, 1, 0]
    assert data.train.counts().tolist() == [32, 8, 1, 1]
    assert not set(names(data.train)) & set(names(data.val))
    assert any("'d'" in note for note in data.notes)
    (tmp_path / "one").rename(tmp_path / "other place")
    assert open_data(str(tmp_path / "other place"), val_share=0.2).val.fingerprint() == data.val.fingerprint()
    other = open_data(str(tmp_path / "other place"), val_share=0.2, seed=1)
    assert set(names(other.val)) != set(names(data.val))
    class_folders(tmp_path / "other place", {"e": 5})
    more = open_data(str(tmp_path / "other place"), val_share=0.2)
    assert set(names(data.val)) < set(names(more.val))  # a new class moves no image of the others


def test_large_share_leaves_every_class_a_training_image(tmp_path):
    class_folders(tmp_path, {"a": 2, "b": 3})
    data = open_data(str(tmp_path), val_share=0.95)
    assert data.train.counts().tolist() == [1, 1]
    assert data.val.counts().tolist() == [1, 2]


@pytest.mark.parametrize("share", [0, 1, -0.1, 2])
def test_impossible_share_is_refused(tmp_path, share):
    class_folders(tmp_path, {"a": 2, "b": 2})
    with pytest.raises(ValueError, match="val_share"):
        open_data(str(tmp_path), val_share=share)


def test_validation_set_can_be_given_and_is_counted_in_the_training_classes(tmp_path):
    class_folders(tmp_path / "t", {"a": 2, "b": 2, "c": 2})
    class_folders(tmp_path / "v", {"b": 2, "c": 1})
    data = open_data(str(tmp_path / "t"), val=str(tmp_path / "v"))
    assert len(data.train) == 6
    assert data.val.classes == ("a", "b", "c")
    assert data.val.labels.tolist() == [1, 1, 2]
    assert "classes without validation images: 'a'" in data.notes


def test_validation_class_unknown_to_training_is_refused(tmp_path):
    class_folders(tmp_path / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / "val", {"a": 2, "zebra": 2})
    with pytest.raises(ValueError, match="'zebra'"):
        open_data(str(tmp_path))


def test_one_class_is_refused(tmp_path):
    class_folders(tmp_path, {"only": 3})
    with pytest.raises(ValueError, match=r"1 class \('only'\); a classifier needs two or more"):
        open_data(str(tmp_path))


def test_empty_folder_is_refused_and_a_list_beside_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no class folders with images"):
        open_data(str(tmp_path))
    (tmp_path / "labels.csv").write_text("path,label\n")
    with pytest.raises(ValueError, match=r"labels\.csv"):
        open_data(str(tmp_path))


def test_class_folders_without_images_are_refused_or_noted(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("")
    with pytest.raises(ValueError, match="have no images; image file names end with"):
        open_data(str(tmp_path))
    class_folders(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "loose.jpg").write_bytes(encoded(3))
    data = open_data(str(tmp_path))
    assert data.classes == ("a", "b")
    assert any("'empty'" in note for note in data.notes)
    assert any("directly in" in note for note in data.notes)


def test_images_that_lie_in_no_class_folder_are_told_of_with_where_they_belong(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(encoded(number))
    with pytest.raises(ValueError, match="are not in class folders; put those of each class into its own folder"):
        open_data(str(tmp_path))
    with pytest.raises(ValueError, match=r"0\.jpg is one image; give a directory of class folders"):
        open_data(str(tmp_path / "0.jpg"))


def test_files_of_telephones_are_named_with_what_to_do(tmp_path):
    for name in ("a/1.heic", "a/2.HEIC", "b/1.heic"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"....ftypheic")
    with pytest.raises(ValueError, match=r"The files there end with \.heic 3\. Save them as JPEG first"):
        open_data(str(tmp_path))


def test_an_archive_is_to_be_unpacked_and_junk_is_no_reason_to_trust_pickles(tmp_path):
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("a/1.jpg", encoded(1))
    with pytest.raises(ValueError, match="is an archive, which must be unpacked first"):
        open_data(str(tmp_path / "set.zip"))
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with pytest.raises(ValueError, match="not a NumPy archive, or is damaged; save it with") as told:
        open_data(str(tmp_path / "junk.npz"))
    assert "pickle" not in str(told.value)


def test_only_validation_folders_are_refused(tmp_path):
    class_folders(tmp_path / "val", {"a": 2, "b": 2})
    with pytest.raises(ValueError, match="no training images"):
        open_data(str(tmp_path))


def test_source_pickles_small_and_equal(tmp_path):
    class_folders(tmp_path, {"a": 5, "b": 5})
    train = open_data(str(tmp_path)).train
    copy = pickle.loads(pickle.dumps(train))
    assert copy.fingerprint() == train.fingerprint()
    np.testing.assert_array_equal(copy.read(3), train.read(3))


def test_name_that_is_no_unicode_can_be_read_and_printed(tmp_path):
    class_folders(tmp_path, {"a": 2, "b": 2})
    try:
        os.rename(tmp_path / "a" / "0.jpg", os.fsencode(tmp_path / "a") + b"/\xff\xfe.jpg")
    except OSError:
        pytest.skip("the file system takes only Unicode names")
    data = open_data(str(tmp_path))
    for source in (data.train, data.val):
        for index in range(len(source)):
            source.name(index).encode()
            assert source.read(index).shape == (24, 32, 3)


def test_folder_of_train_images_is_a_class(tmp_path):
    class_folders(tmp_path, {"bus": 2, "train": 2, "test": 2})
    assert open_data(str(tmp_path)).classes == ("bus", "test", "train")


def test_large_photographs_can_be_read_smaller(tmp_path):
    class_folders(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "a" / "0.jpg").write_bytes(encoded(1, height=640, width=960))
    (tmp_path / "a" / "1.jpg").write_bytes(encoded(2, height=640, width=960))
    train = open_data(str(tmp_path)).train
    assert train.read(0).shape == (640, 960, 3)
    smaller = train.decoded(at_least=160)
    assert smaller.subset([0]).read(0).shape == (160, 240, 3)
    assert train.read(0).shape == (640, 960, 3)


@pytest.mark.parametrize("suffix", [".jfif", ".JPE", ".pjpeg"])
def test_other_endings_of_jpeg_are_images(tmp_path, suffix):
    class_folders(tmp_path, {"a": 3, "b": 3}, suffix=suffix)
    data = open_data(str(tmp_path))
    assert len(data.train) + len(data.val) == 6


def test_files_that_are_no_images_by_their_names_are_counted(tmp_path):
    class_folders(tmp_path, {"a": 3, "b": 3})
    for name in ("a/1.txt", "a/2.TXT", "b/deep.heic", "b/none", "b/.hidden"):
        (tmp_path / name).write_text("")
    (tmp_path / "README.md").write_text("in no class folder")
    notes = open_data(str(tmp_path)).notes
    assert any("4 files in" in note and ".txt 2, no extension 1, .heic 1" in note for note in notes)
    assert not any("README" in note or ".md" in note for note in notes)


def test_linked_folders_belong_to_their_class_and_each_counts_once(tmp_path):
    class_folders(tmp_path / "set", {"a": 3, "b": 3})
    class_folders(tmp_path / "elsewhere", {"more": 4}, start=20)
    place = tmp_path / "set" / "a"
    (place / "inner").mkdir()
    (place / "inner" / "x.jpg").write_bytes(encoded(40))
    (place / "linked").symlink_to(tmp_path / "elsewhere" / "more")
    (place / "again").symlink_to(tmp_path / "elsewhere" / "more")
    (place / "circle").symlink_to(place)
    (place / "inner" / "up").symlink_to(tmp_path / "set" / "a")
    (place / "a link to inner").symlink_to(place / "inner")
    (tmp_path / "elsewhere" / "more" / "back").symlink_to(place)
    data = open_data(str(tmp_path / "set"))
    listed = sorted(names(data.train) + names(data.val))
    expected = [f"a/{n}.jpg" for n in range(3)] + [f"a/again/{n}.jpg" for n in range(4)] + ["a/inner/x.jpg"]
    assert listed == expected + [f"b/{n}.jpg" for n in range(3)]
