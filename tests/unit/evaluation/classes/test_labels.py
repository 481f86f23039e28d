import json

import numpy as np
import pytest
from timm.data import ImageNetInfo

from saccade.data.folder import open_folder
from saccade.data.source import ArraySource
from saccade.evaluation.classes.labels import (
    LabelError,
    labelled_places,
    match_classes,
    read_labels,
    read_subset,
    read_truth,
)
from support.images import class_folders

INFO = ImageNetInfo("imagenet-1k")
DESCRIBED = tuple(INFO.index_to_description(index) for index in range(1000))
WORDNET = tuple(INFO.label_names())


def source(classes, labels):
    labels = np.array(labels)
    return ArraySource(np.zeros((len(labels), 4, 4, 3), np.uint8), labels, classes=classes)


def written(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_classes_are_matched_by_name_in_the_runs_order():
    found = read_truth(source(("cat", "dog"), [0, 1, 1]), ("dog", "cat", "owl"))
    assert found.valid.argmax(1).tolist() == [1, 0, 0]
    assert found.valid.sum() == 3


def test_folders_named_by_number_are_read_as_numbers_and_not_in_the_order_of_text(tmp_path):
    class_folders(tmp_path, {str(number): 1 for number in range(12)})
    opened = open_folder(tmp_path).train
    assert opened.classes[:4] == ("0", "1", "10", "11")  # the trap
    for classes in (DESCRIBED, WORDNET):
        found = read_truth(opened, classes)
        numbers = [int(opened.classes[label]) for label in opened.labels]
        assert found.valid.argmax(1).tolist() == numbers
        assert any("numbers" in note for note in found.notes)


def test_wordnet_ids_are_known_to_a_model_of_timms():
    found, notes = match_classes([WORDNET[7], WORDNET[990]], DESCRIBED)
    assert found.tolist() == [7, 990]
    assert notes


def test_numbers_mean_nothing_to_a_run_of_other_classes():
    with pytest.raises(LabelError, match=r"the run does not have '0', '1'; its 2 classes are 'cat', 'dog'.*--labels"):
        read_truth(source(("0", "1"), [0, 1]), ("cat", "dog"))


def test_subset_cuts_the_logits_as_imagenet_a_does(tmp_path):
    ids = [WORDNET[index] for index in (6, 11, 900)]
    names = read_subset(written(tmp_path / "a.txt", f"{ids[2]} water tower\n\n# note\n{ids[0]}\n{ids[1]}\n"))
    assert names == [ids[2], ids[0], ids[1]]
    found = read_truth(source((ids[0], ids[2]), [0, 1]), DESCRIBED, subset=names)
    assert found.columns.tolist() == [900, 6, 11]
    assert found.valid.tolist() == [[False, True, False], [True, False, False]]
    assert found.classes[0] == DESCRIBED[900]


def test_image_outside_the_subset_is_refused(tmp_path):
    names = read_subset(written(tmp_path / "s.txt", "cat\ndog\n"))
    with pytest.raises(LabelError, match=r"'owl', which is not in the subset"):
        read_truth(source(("cat", "owl"), [0, 1]), ("cat", "dog", "owl"), subset=names)


def test_real_allows_several_labels_and_leaves_out_images_without(tmp_path):
    class_folders(tmp_path / "set", {"x": 0, "y": 0})
    for folder, number in (("x", 3), ("y", 1), ("x", 2)):
        class_folders(tmp_path / "new", {folder: 1})
        (tmp_path / "new" / folder / "0.jpg").rename(tmp_path / "set" / folder / f"ILSVRC2012_val_{number:08d}.jpg")
    opened = open_folder(tmp_path / "set").train
    assert [opened.name(i)[-6:-4] for i in range(3)] == ["02", "03", "01"]
    labels = read_labels(written(tmp_path / "real.json", [[0], [], [1, 2]]))  # of images 1, 2, 3
    places = labelled_places(opened, labels)
    assert places.tolist() == [1, 2]
    found = read_truth(opened, ("a", "b", "c"), labels=labels)
    assert found.valid.tolist() == [[False, True, True], [True, False, False]]


def test_real_without_numbers_in_names_needs_the_whole_set(tmp_path):
    labels = read_labels(written(tmp_path / "real.json", [[0], [1], [1]]))
    with pytest.raises(LabelError, match="labels for 3 images, but the dataset has 2"):
        labelled_places(source(("a", "b"), [0, 1]), labels)
    with pytest.raises(LabelError, match=r"class number 1; the run has classes 0 to 0"):
        read_truth(source(("a", "b", "c"), [0, 1, 1]), ("a",), labels=labels)


def test_map_of_names_leads_from_the_images_classes_to_the_runs(tmp_path):
    labels = read_labels(written(tmp_path / "map.json", {"Katze": "cat", "Hund": 1}))
    found = read_truth(source(("Hund", "Katze"), [0, 1]), ("cat", "dog"), labels=labels)
    assert found.valid.argmax(1).tolist() == [1, 0]
    with pytest.raises(LabelError, match="does not map the classes 'Eule'"):
        read_truth(source(("Eule", "Katze"), [0, 1]), ("cat", "dog"), labels=labels)


@pytest.mark.parametrize("text", ["{", "[]", "[1, 2]", '[["a"]]', '{"a": [1]}', "3"])
def test_files_of_other_content_are_refused_with_what_is_expected(tmp_path, text):
    with pytest.raises(LabelError, match=r"labels\.json"):
        read_labels(written(tmp_path / "labels.json", text))


@pytest.mark.parametrize(("text", "why"), [("", "names 0 classes"), ("a\nb\na\n", "'a' twice")])
def test_subsets_that_are_none_are_refused(tmp_path, text, why):
    with pytest.raises(LabelError, match=why):
        read_subset(written(tmp_path / "s.txt", text))


def test_missing_files_are_named(tmp_path):
    for read in (read_labels, read_subset):
        with pytest.raises(LabelError, match="does not exist"):
            read(tmp_path / "none")
