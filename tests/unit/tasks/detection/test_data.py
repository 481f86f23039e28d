"""Sets of images with objects: layouts, what is wrong with them, and how it is told."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from saccade.data.image import ORIENTATION, BadSample
from saccade.tasks.detection.data import BoxTargets
from support.detection_sets import encode, kinds, opened
from support.objects import change, make_image, make_objects


@pytest.fixture
def root(tmp_path):
    return make_objects(tmp_path / "set")


def first_target(root):
    return opened(root).train.targets.read(0)


# Layouts


def test_coco_lists_beside_folders_of_images(root):
    data = opened(root)
    assert (len(data.train), len(data.val), data.train.outputs) == (6, 2, ("square", "disc"))
    assert data.train.task == "detect"
    encoded = encode(data.train)
    for place, (label, mask) in enumerate(make_image(0)[1]):
        assert encoded["labels"][place] == label
        np.testing.assert_array_equal((encoded["mask"] == place + 1).any(0).numpy(), mask)
    assert (encoded["labels"][2:] == -1).all()


@pytest.mark.parametrize("where", ["annotations/instances_train2017.json", "train/_annotations.coco.json"])
def test_other_names_of_coco_lists(root, where):
    (root / "val.json").unlink()
    (root / where).parent.mkdir()
    (root / "train.json").rename(root / where)
    data = opened(root)
    assert (len(data.train) + len(data.val), data.train.name(0)[:13]) == (6, "images/train/")


def test_only_list_of_a_folder_is_the_training_part(root):
    (root / "val.json").unlink()
    (root / "train.json").rename(root / "result.json")
    data = opened(root)
    assert len(data.train) + len(data.val) == 6


def test_voc_files(tmp_path):
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    for number, part in enumerate(("train", "train", "val")):
        Image.fromarray(make_image(number)[0]).save(tmp_path / "JPEGImages" / f"{number}.png")
        with open(tmp_path / "ImageSets" / "Main" / f"{part}.txt", "a") as file:
            file.write(f"{number}\n")
        (tmp_path / "Annotations" / f"{number}.xml").write_text(
            "<annotation><size><width>64</width><height>64</height></size>"
            "<object><name>dog</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>10</xmax><ymax>20</ymax></bndbox></object>"
            "<object><name>cat</name><difficult>1</difficult>"
            "<bndbox><xmin>5</xmin><ymin>6</ymin><xmax>7</xmax><ymax>8</ymax></bndbox></object></annotation>"
        )
    data = opened(tmp_path)
    assert (len(data.train), len(data.val), data.train.outputs) == (2, 1, ("cat", "dog"))
    target = data.train.targets.read(0)
    assert target["boxes"][0].tolist() == [0, 1, 10, 20]  # pixels are counted from 1, the last one is the box's own
    assert target["crowd"][:3].tolist() == [False, True, False]
    assert any("2 regions are of crowds or difficult objects" in note for note in data.notes)
    for name in ("ImageSets/Main/train.txt", "ImageSets/Main/val.txt", "Annotations/2.xml"):
        (tmp_path / name).unlink()
    assert "1 image is not used (no file in Annotations): '2.png'" in opened(tmp_path).notes


@pytest.mark.parametrize("swapped", [False, True])
def test_yolo_files_with_boxes_and_polygons(tmp_path, swapped):
    for part, number in (("train", 0), ("train", 1), ("val", 2)):
        images, labels = (
            tmp_path / (f"{part}/{kind}" if swapped else f"{kind}/{part}") for kind in ("images", "labels")
        )
        images.mkdir(parents=True, exist_ok=True)
        labels.mkdir(parents=True, exist_ok=True)
        Image.fromarray(make_image(number)[0]).save(images / f"{number}.png")
        (labels / f"{number}.txt").write_text("0 0.5 0.5 0.25 0.5\n1 0.1 0.1 0.3 0.1 0.3 0.2\n")
    (tmp_path / "data.yaml").write_text("names: {0: dog, 1: cat}\n")
    data = opened(tmp_path)
    assert (len(data.train), len(data.val), data.train.outputs) == (2, 1, ("dog", "cat"))
    target = data.train.targets.read(0)
    assert target["boxes"][0].tolist() == [24, 16, 40, 48]
    np.testing.assert_allclose(target["boxes"][1], [6.4, 6.4, 19.2, 12.8], rtol=1e-6)
    assert target["regions"][0] is None
    assert target["regions"][1][0][:2] == [6.4, 6.4]
    (tmp_path / "data.yaml").write_text("names: [dog]\n")
    with pytest.raises(ValueError, match="some objects have the classes '1', which have no name"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ["[no, 7]", "{0: no, 1: 7}", "{'1': 7, '0': no}", "\n- no\n- 7"])
def test_yolo_names_are_texts_whatever_yaml_takes_them_for(tmp_path, text):
    for kind in ("images", "labels"):
        (tmp_path / kind).mkdir()
    for number in range(3):
        Image.fromarray(make_image(number)[0]).save(tmp_path / "images" / f"{number}.png")
        (tmp_path / "labels" / f"{number}.txt").write_text("0 0.5 0.5 0.1 0.1\n1 0.2 0.2 0.1 0.1\n")
    (tmp_path / "data.yaml").write_text(f"names: {text}\n")
    assert opened(tmp_path).train.outputs == ("no", "7")


# What is wrong, one by one


def test_box_without_area_is_left_out_and_told(root):
    change(root, lambda whole: whole["annotations"][0].update(bbox=[5, 5, 0, 7]))
    data = opened(root)
    assert data.train.targets.counts().sum() == 11
    assert any("problems with 1 object" in note and "box without area" in note for note in data.notes)
    assert ("box", "images/train/0.png") in kinds(root)[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_box_of_no_finite_numbers_is_left_out_and_told(root, value):
    change(root, lambda whole: whole["annotations"][0].update(bbox=[5, 5, value, 7]))
    assert any("box without area" in note for note in opened(root).notes)


def test_box_outside_of_its_image_is_left_out_and_told(root):
    change(root, lambda whole: whole["annotations"][0].update(bbox=[70, 5, 10, 7]))
    data = opened(root)
    assert data.train.targets.counts().sum() == 11
    assert any("box outside the image" in note for note in data.notes)


def test_box_outside_of_an_image_of_unknown_size_is_told_when_it_is_read(root):
    def spoil(whole):
        whole["annotations"][0].update(bbox=[70, 5, 10, 7])
        del whole["images"][0]["width"]

    data = opened(change(root, spoil))
    with pytest.raises(BadSample, match="boxes are outside its 64 x 64 pixels"):
        encode(data.train)
    assert ("box", "images/train/0.png") in kinds(root)[0]


def test_box_that_reaches_beyond_its_image_is_cut_and_told(root):
    change(root, lambda whole: whole["annotations"][0].update(bbox=[40, -9, 40, 30]))
    data = opened(root)
    assert "train: 1 box reaches beyond its image; it is cut at the edges" in data.notes
    assert encode(data.train)["boxes"][0].tolist() == [40, 0, 64, 21]
    assert ("box", "images/train/0.png") in kinds(root)[0]


@pytest.mark.parametrize("key", ["image_id", "category_id"])
@pytest.mark.parametrize("value", [77, None, [1], {"a": 1}, True, "x"])
def test_unknown_id_is_told(root, key, value):
    change(root, lambda whole: whole["annotations"][3].update({key: value}))
    data = opened(root)
    assert data.train.targets.counts().sum() == 11
    found, report = kinds(root)
    assert ("unknown", "annotation 4 of train.json") in found
    assert not report.ok
    assert key in next(one.reason for one in report.findings if one.kind == "unknown")


def test_many_unknown_ids_are_refused(root):
    def spoil(whole):
        for one in whole["annotations"][:4]:
            one["image_id"] = 50

    with pytest.raises(
        ValueError, match=r"4 of 12 objects of the split train cannot be used: 'annotation 1 of train\.json"
    ):
        opened(change(root, spoil))


def test_ids_may_be_texts_or_numbers_with_a_point(root):
    before = first_target(root)

    def reword(whole):
        for one in whole["images"]:
            one["id"] = str(one["id"])
        for one in whole["annotations"]:
            one["category_id"] = float(one["category_id"])

    after = first_target(change(root, reword))
    assert all(np.array_equal(before[name], after[name]) for name in ("boxes", "labels"))


def test_missing_image_is_told_with_its_objects(root):
    (root / "images" / "train" / "2.png").unlink()
    data = opened(root)
    assert len(data.train) == 5
    assert any("images/train/2.png" in note for note in data.notes)
    found, report = kinds(root)
    assert ("missing", "images/train/2.png") in found
    assert "its objects are lost: 2" in next(one.reason for one in report.findings if one.kind == "missing")


def test_many_missing_images_are_refused(root):
    for number in range(3):
        (root / "images" / "train" / f"{number}.png").unlink()
    with pytest.raises(ValueError, match="3 of 6 images of the split train cannot be used"):
        opened(root)


def test_image_without_objects_is_used_and_told(root):
    change(root, lambda whole: whole.update(annotations=[o for o in whole["annotations"] if o["image_id"] != 2]))
    data = opened(root)
    assert len(data.train) == 6
    assert "train: 1 image is without objects; they serve as negative examples" in data.notes
    found, report = kinds(root)
    assert found == [("no objects", "images/train/1.png")]
    assert report.ok


def test_set_without_any_object_is_refused(root):
    change(root, lambda whole: whole.update(annotations=[]))
    with pytest.raises(ValueError, match="no objects in any image"):
        opened(root)


def test_set_whose_objects_are_all_left_out_says_why(root):
    def spoil(whole):
        for one in whole["annotations"]:
            one["bbox"] = [640, 640, 100, 100]

    with pytest.raises(ValueError, match=r"problems with 12 objects: .*a box outside the image"):
        opened(change(root, spoil))


def test_crowd_is_kept_apart_and_told(root):
    change(root, lambda whole: whole["annotations"][1].update(iscrowd=1))
    data = opened(root)
    assert data.train.targets.read(0)["crowd"][:2].tolist() == [False, True]
    assert data.train.targets.counts().sum() == 11
    assert any("1 region is of crowds" in note for note in data.notes)


def test_class_without_objects_is_told(root):
    change(root, lambda whole: whole["categories"].append({"id": 9, "name": "star"}))
    data = opened(root)
    assert data.train.outputs == ("square", "disc", "star")
    assert "no training object has the class 'star'; the model cannot learn it" in data.notes


def test_doubled_box_is_found(root):
    change(root, lambda whole: whole["annotations"].append({**whole["annotations"][0], "id": 99}))
    found, report = kinds(root)
    assert found == [("doubled", "images/train/0.png")]
    assert not report.ok


def test_image_of_another_size_than_its_list_says_is_not_learned_from(root):
    change(root, lambda whole: whole["images"][0].update(width=80))
    with pytest.raises(BadSample, match="say 80 x 64 pixels but the image has 64 x 64"):
        encode(opened(root).train)
    found, report = kinds(root)
    assert found == [("size", "images/train/0.png")]
    assert not report.ok


@pytest.mark.parametrize("listed", [(64, 96), (96, 64)])
def test_boxes_are_of_the_image_as_its_exif_note_turns_it(root, listed):
    upright = np.zeros((96, 64, 3), np.uint8)
    upright[10:30, 5:25] = 255
    note = Image.Exif()
    note[ORIENTATION] = 6  # a viewer turns it by a quarter, clockwise
    Image.fromarray(np.ascontiguousarray(np.rot90(upright))).save(root / "images" / "train" / "0.png", exif=note)

    def turn(whole):
        whole["images"][0].update(width=listed[0], height=listed[1])
        whole["annotations"][0].update(bbox=[5, 10, 20, 20], segmentation=[])
        whole["annotations"][1].update(bbox=[40, 40, 5, 5], segmentation=[])

    source = opened(change(root, turn)).train
    if listed == (96, 64):
        with pytest.raises(BadSample, match="rotated by its EXIF orientation"):
            encode(source)
        assert ("size", "images/train/0.png") in kinds(root)[0]
        return
    encoded = encode(source, side=96)
    left, top, right, bottom = encoded["boxes"][0].int().tolist()
    image = encoded["image"].float().mean(0)
    assert image[top:bottom, left:right].mean() > 240
    assert image[top + 20 : bottom + 20, left:right].mean() < 15


def test_the_smallest_objects_are_measured_by_their_shorter_side():
    boxes = np.array([[0, 0, 8, 30], [0, 0, 40, 50], [5, 5, 6, 6]], np.float32)
    targets = BoxTargets(
        np.arange(1),
        ("a",),
        starts=np.array([0, 3]),
        boxes=boxes,
        labels=np.zeros(3, np.int64),
        crowd=np.array([False, False, True]),
    )
    assert targets.thinnest() == pytest.approx(8 + 0.05 * (40 - 8))
    assert replace(targets, crowd=np.ones(3, bool)).thinnest() is None
