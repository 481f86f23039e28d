"""Sets of images with objects: layouts, what is wrong with them, and how it is told."""

import json
from dataclasses import replace

import numpy as np
import pycocotools.mask
import pytest
import torch
from PIL import Image

from saccade.data.check import check_data
from saccade.data.framing import Framing
from saccade.data.geometry import draw_uniforms
from saccade.data.image import ORIENTATION, BadSample
from saccade.data.open import open_data
from saccade.settings import AugmentConfig, DataConfig
from saccade.tasks.detection.data import BoxTargets, ObjectEncoder
from saccade.tasks.detection.objects import unpack_masks
from saccade.tasks.detection.regions import MOST_LAYERS, layers_needed, paint_objects, to_mask
from saccade.tasks.detection.runs import pack_runs, paint_runs, unpack_counts
from saccade.tasks.opening import open_samples
from saccade.tasks.segmentation.augment import CropAugment
from support.objects import change, make_image, make_objects


@pytest.fixture
def root(tmp_path):
    return make_objects(tmp_path / "set")


def opened(root, **options):
    return open_data(str(root), task="detect", **options)


def kinds(root):
    report = check_data(str(root))
    return [(finding.kind, finding.name) for finding in report.findings], report


def first_target(root):
    return opened(root).train.targets.read(0)


def encode(source, index=0, side=64):
    return ObjectEncoder(Framing(side, fit=True))(source.sample(index))


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


# Regions of odd kinds

LETTERS = pack_runs(np.arange(64 * 64).reshape(64, 64) % 64 < 9)


def with_region(root, region):
    return change(root, lambda whole: whole["annotations"][0].update(segmentation=region, bbox=[4, 4, 30, 30]))


@pytest.mark.parametrize(
    "region",
    [
        [[4, 4, 34, 4, 34, 34, 4, 34]],
        [4, 4, 34, 4, 34, 34, 4, 34],
        [[4, 4, 19, 4, 19, 34, 4, 34], [19, 4, 34, 4, 34, 34, 19, 34]],
        {"size": [64, 64], "counts": [4 * 64 + 4, *([30, 34] * 29), 30]},
        [],
        None,
        [[1, 2, 3]],
        "polygon",
        5,
        [[4, 4, 4.1, 4, 4.1, 4.1]],
    ],
)
def test_region_that_can_be_read_or_is_replaced_by_its_box(root, region):
    encoded = encode(opened(with_region(root, region)).train)
    own = (encoded["mask"] == 1).any(0)
    assert own[4:34, 4:34].all()
    assert own.sum() == 30 * 30


def write_discs(root, centres, *, side=64, reach=12):
    """Write a set of one image of discs."""
    rows, columns = np.mgrid[:side, :side]
    masks = [(rows - y) ** 2 + (columns - x) ** 2 < reach**2 for x, y in centres]
    objects = [
        {
            "id": number + 1,
            "image_id": 1,
            "category_id": 1,
            "bbox": [x - reach, y - reach, 2 * reach, 2 * reach],
            "segmentation": {"size": [side, side], "counts": pack_runs(mask)},
        }
        for number, ((x, y), mask) in enumerate(zip(centres, masks, strict=True))
    ]
    images = [{"id": 1, "file_name": "one.png", "height": side, "width": side}]
    listed = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "disc"}]}
    (root / "images").mkdir(parents=True)
    Image.new("RGB", (side, side)).save(root / "images" / "one.png")
    for part in ("train", "val"):
        (root / f"{part}.json").write_text(json.dumps(listed))
    return masks


@pytest.mark.parametrize(
    ("centres", "layers"),
    [([(16, 16), (48, 48)], 1), ([(20, 20), (26, 20)], 2), ([(20, 20), (26, 20), (32, 20), (50, 50)], 3)],
)
def test_masks_that_share_pixels_are_kept_whole_in_layers(tmp_path, centres, layers):
    masks = write_discs(tmp_path, centres)
    encoded = encode(opened(tmp_path).train)
    assert encoded["mask"].shape == (layers, 64, 64)
    found = unpack_masks(encoded["mask"], torch.arange(1, len(masks) + 1)).numpy()
    np.testing.assert_array_equal(found, np.stack(masks))


def test_of_more_masks_over_each_other_than_layers_the_smaller_hide_the_larger():
    boxes = np.array([[0, 0, 20 - place, 20 - place] for place in range(6)], dtype=np.float32)
    layers = layers_needed([None] * 6, boxes, (32, 32))
    found = paint_objects([None] * 6, boxes, (32, 32), name="one", layers=layers)
    sizes = [int((found == place + 1).sum()) for place in range(6)]
    assert layers == MOST_LAYERS
    assert sizes == [400, 361, 324, 17**2 - 16**2, 16**2 - 15**2, 225]


@pytest.mark.parametrize("seed", range(5))
def test_as_many_layers_are_counted_as_painting_takes(seed):
    draws = np.random.default_rng(seed)
    corners = draws.integers(0, 20, (6, 2))
    boxes = np.concatenate([corners, corners + draws.integers(1, 12, (6, 2))], axis=1).astype(np.float32)
    painted = paint_objects([None] * 6, boxes, (32, 32), name="one", layers=6)
    assert layers_needed([None] * 6, boxes, (32, 32)) == min(painted.any((1, 2)).sum(), MOST_LAYERS)


def test_crops_move_all_layers_alike():
    layers = torch.randint(0, 5, (2, 3, 32, 32))
    crop = CropAugment(AugmentConfig(), crop=32, scale=(0.6, 1.6), mean=(0.5,) * 3, std=(0.5,) * 3, device="cpu")
    images = {"image": torch.zeros(2, 3, 32, 32, dtype=torch.uint8)}
    moved = crop.geometry(images, draw_uniforms(torch.tensor([3, 4])), operations=0, later=[])
    together = moved.mask(layers)
    for place in range(3):
        torch.testing.assert_close(together[:, place], moved.mask(layers[:, place]))


@pytest.mark.parametrize("region", [[[1, 2, 3]], "polygon", 5, [[4, 4, 34, 4, 34, 34], [1, 2]]])
def test_odd_region_is_told(root, region):
    data = opened(with_region(root, region))
    assert any("problems with 1 object" in note for note in data.notes)
    assert ("box", "images/train/0.png") in kinds(root)[0]


@pytest.mark.parametrize(
    "region",
    [
        {"size": [32, 32], "counts": [5, 5]},
        {"size": [64, 64], "counts": [-5, 10]},
        {"size": [64, 64], "counts": [5, 10**18]},
        {"size": [64, 64], "counts": ["a"]},
        {"size": [64, 64], "counts": [True, 5]},
        {"size": [64, 64], "counts": LETTERS[:-1] + "o"},
        {"size": [64, 64], "counts": "\x00\x01"},
        {"size": [64, 64], "counts": "oooooooooooooooooooo0"},
        {"size": [64, 64], "counts": "ünï"},
        {"size": [64, 64]},
        {"counts": [5, 5]},
        {"size": "64", "counts": [5, 5]},
        [[4, 4, 1e12, 4, 1e12, 1e12]],
        [[4, 4, float("nan"), 4, 5, 6]],
        [["a", "b", "c", "d", "e", "f"]],
    ],
)
def test_region_that_cannot_be_read_is_told(root, region):
    data = opened(with_region(root, region))
    with pytest.raises(BadSample, match="object 1: "):
        encode(data.train)
    assert ("box", "images/train/0.png") in kinds(root)[0]


def test_runs_are_packed_as_coco_packs_them():
    tools = pytest.importorskip("faster_coco_eval.core.mask")
    draws = np.random.default_rng(0)
    for share in np.linspace(0, 1, 30):
        mask = draws.random(draws.integers(1, 50, 2)) < share
        packed = pack_runs(mask)
        assert packed.encode() == tools.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
        np.testing.assert_array_equal(paint_runs(unpack_counts(packed), mask.shape), mask)


def test_polygons_are_filled_as_coco_fills_them():
    polygons = [[3.5, 2.0, 30.2, 5.7, 20.0, 28.0], [31, 31, 39, 31, 35, 38]]
    theirs = pycocotools.mask.decode(pycocotools.mask.merge(pycocotools.mask.frPyObjects(polygons, 40, 44)))
    np.testing.assert_array_equal(to_mask(polygons, (40, 44)), theirs.astype(bool))


# Lists by strangers


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda whole: whole.pop("categories"), "has no list 'categories'"),
        (lambda whole: whole.update(annotations={}), "has no list 'annotations'"),
        (lambda whole: whole["images"].append(3), "entry 7 of images is 3"),
        (lambda whole: whole["images"][0].pop("file_name"), "entry 1 of images"),
        (lambda whole: whole["images"][0].update(file_name=7), "entry 1 of images"),
        (lambda whole: whole["images"][0].update(id=[1]), "entry 1 of images"),
        (lambda whole: whole["images"][1].update(id=1), "two entries of images with the id 1"),
        (
            lambda whole: whole["images"][1].update(file_name="images/train/0.png"),
            "the images 1 and 2 are the same file",
        ),
        (lambda whole: whole["images"][1].update(file_name="images/../images/train/0.png"), "are the same file"),
        (lambda whole: whole["categories"][1].update(name="square"), "two categories with the same name"),
        (lambda whole: whole["categories"][1].update(id=1), "two entries of categories with the id 1"),
        (lambda whole: whole["annotations"].append([1]), "annotation 13 is list"),
        (lambda whole: whole["annotations"][0].pop("bbox"), "annotation 1 has the bbox None"),
        (lambda whole: whole["annotations"][0].update(bbox=[1, 2, 3]), "it must be left, top, width, height"),
        (lambda whole: whole["annotations"][0].update(bbox=["1", 2, 3, 4]), "it must be left, top, width, height"),
        (lambda whole: whole["annotations"][0].update(iscrowd="0"), "iscrowd '0'; it must be 0 or 1"),
    ],
)
def test_list_that_is_none_of_cocos_is_refused_with_the_place(root, spoil, match):
    with pytest.raises(ValueError, match=match):
        opened(change(root, spoil))


@pytest.mark.parametrize("text", ['[{"bbox": [1, 2, 3, 4]}]', '{"images": [', '{"images": ' + "[" * 100_000])
def test_file_that_is_no_such_list_is_refused(root, text):
    (root / "train.json").write_text(text)
    with pytest.raises(ValueError, match=r"train\.json (is not JSON|holds a list)"):
        opened(root)


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "images/../../secret.png", "a\0b.png", "x" * 5000, "\ud800"]
)
def test_list_names_nothing_outside_of_its_folder(root, name):
    Image.fromarray(make_image(5)[0]).save(root.parent / "secret.png")
    data = opened(change(root, lambda whole: whole["images"][0].update(file_name=name)))
    assert len(data.train) == 5
    assert len(data.train.lost) == 1
    check_data(str(root))


def test_names_in_any_script_and_by_other_slashes(root):
    (root / "images" / "train" / "0.png").rename(root / "images" / "train" / "Zellen-Größe 細胞.png")
    change(root, lambda whole: whole["images"][0].update(file_name="images\\train\\Zellen-Größe 細胞.png"))
    data = opened(root)
    assert data.train.name(0) == "images/train/Zellen-Größe 細胞.png"
    assert not data.train.lost


def test_list_with_a_byte_order_mark_is_read(root):
    (root / "train.json").write_bytes(b"\xef\xbb\xbf" + (root / "train.json").read_bytes())
    assert len(opened(root).train) == 6


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<annotation><object><name>a</name></object></annotation>", "has no name, or its box lacks a side"),
        ("<annotation><object>", "is not XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>', "defines XML entities"),
    ],
)
def test_voc_file_that_cannot_be_read_is_refused(tmp_path, text, match):
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "JPEGImages").mkdir()
    Image.fromarray(make_image(0)[0]).save(tmp_path / "JPEGImages" / "a.png")
    (tmp_path / "Annotations" / "a.xml").write_text(text)
    with pytest.raises(ValueError, match=match):
        opened(tmp_path)


@pytest.mark.parametrize(
    "line", ["0 1 1 1", "x 1 1 1 1", "-1 1 1 1 1", "0.5 1 1 1 1", "nan 1 1 1 1", "1e400 1 1 1 1", "0 1 1 1 1 1"]
)
def test_yolo_line_that_is_none_is_refused(tmp_path, line):
    for kind in ("images", "labels"):
        (tmp_path / kind).mkdir()
    Image.fromarray(make_image(0)[0]).save(tmp_path / "images" / "a.png")
    (tmp_path / "labels" / "a.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 2: .*a line must be class, x, y, width, height"):
        opened(tmp_path)


def test_yolo_file_of_no_image_and_broken_image_are_told(tmp_path):
    for kind in ("images", "labels"):
        (tmp_path / kind).mkdir()
    for number in range(60):
        Image.fromarray(make_image(number)[0]).save(tmp_path / "images" / f"{number}.png")
        (tmp_path / "labels" / f"{number}.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    (tmp_path / "images" / "0.png").write_text("none")
    (tmp_path / "labels" / "stray.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    names = {bad.name for bad in opened(tmp_path).train.lost}
    assert names == {"images/0.png", "labels/stray.txt"}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda root: (root / "train.json").rename(root / "a.json"), "train.json for training"),
        (lambda root: [file.unlink() for file in root.glob("*.json")], "shows the layouts of COCO, VOC and YOLO"),
        (lambda root: _into(root, root / "deep" / "set"), r"deep/set is: give that"),
    ],
)
def test_folder_that_is_none_is_told_what_it_lacks(root, make, match):
    (root / "other.json").write_text('{"images": [], "annotations": []}')
    make(root)
    with pytest.raises(ValueError, match=match):
        open_samples("detect", DataConfig(path=str(root)))


def _into(root, place):
    place.mkdir(parents=True)
    for name in ("train.json", "val.json", "images"):
        (root / name).rename(place / name)
    (root / "other.json").unlink()


# A clean copy


def test_clean_copy_has_what_is_sound_and_names_the_rest(root, tmp_path):
    from saccade.cli import main

    def spoil(whole):
        whole["annotations"][0].update(bbox=[40, -9, 40, 30], segmentation=[])
        whole["annotations"][1].update(bbox=[5, 5, 0, 7])
        whole["annotations"].append({**whole["annotations"][2], "id": 99})
        whole["annotations"][5].update(segmentation={"size": [9, 9], "counts": [1]})

    change(root, spoil)
    (root / "images" / "train" / "5.png").write_text("none")
    assert main(["data", "check", str(root), "--fix", str(tmp_path / "clean")]) == 0
    data = opened(tmp_path / "clean")
    assert (len(data.train), len(data.val)) == (5, 2)
    assert data.train.targets.counts().sum() == 9
    assert data.train.targets.read(0)["boxes"][0].tolist() == [40, 0, 64, 21]
    found, report = kinds(tmp_path / "clean")
    assert report.ok, report.findings
    left = (tmp_path / "clean" / "left_out.csv").read_text()
    assert all(word in left for word in ("5.png", "box without area", "its box is a duplicate", "without its mask"))
    assert json.loads((tmp_path / "clean" / "train.json").read_text())["categories"][0]["name"] == "square"
    assert found == []


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
