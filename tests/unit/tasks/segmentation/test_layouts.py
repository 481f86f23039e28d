"""Layouts of known sets with masks: lists, VOC, ADE20K, Cityscapes, COCO's panoptic files, pets."""

import json

import numpy as np
import pytest
from PIL import Image

from saccade.settings import DataConfig
from saccade.tasks.opening import open_samples
from saccade.tasks.segmentation.values import ClassMap, guess_map, read_map
from support.mask_sets import mask_of, opened
from support.masks import COLOURS, make_masks, make_pair, save_mask


def test_list_of_images_and_masks(tmp_path):
    root = make_masks(tmp_path / "set")
    rows = [
        f"images/{part}/{n}.png,masks/{part}/{n}.png,{part}"
        for part, count in (("train", 6), ("val", 2))
        for n in range(count)
    ]
    (root / "list.csv").write_text("\n".join(["path,mask,split", *rows]))
    choice, data = open_samples(None, DataConfig(path=str(root / "list.csv")))
    assert choice.kind.name == "segment"
    assert (len(data.train), len(data.val)) == (6, 2)
    assert (mask_of(data.val) == make_pair(100)[1]).all()
    (root / "list.csv").write_text("\n".join(["path,mask,split", *(row.replace(",masks", ",gone") for row in rows)]))
    with pytest.raises(FileNotFoundError, match="listed masks do not exist"):
        opened(root / "list.csv")


def test_binary_masks_of_0_and_255_are_two_classes():
    classes, notes = guess_map([0, 255])
    assert classes.names == ("background", "foreground")
    assert not classes.ignore
    assert "two classes" in notes[0]
    assert guess_map([0, 1, 255])[0].names == ("class 0", "class 1")


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("classes.json", '{"a": 0, "b": [1, 2, 3]}', "some classes have a value and some a colour"),
        ("classes.json", '{"a": 0, "b": 0}', "two classes have the value 0"),
        ("classes.csv", "name,colour\na,red", "neither the column value"),
        ("classes.json", '{"a": -1}', "whole number from 0 to 65535"),
        ("classes.txt", "", "lists no classes"),
        ("classes.json", "[1, 2", "not a valid class file"),
    ],
)  # fmt: skip
def test_bad_file_of_classes_is_refused(tmp_path, name, text, wrong):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=wrong):
        read_map(tmp_path / name)


def test_class_file_of_cvat(tmp_path):
    (tmp_path / "labelmap.txt").write_text("# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:128,0,0::\n")
    found = read_map(tmp_path / "labelmap.txt")
    assert found == ClassMap(("background", "cat"), (0, 128 << 16), colours=True, ignore=())


def test_voc_is_read_by_its_lists(tmp_path):
    for number in range(4):
        image, mask = make_pair(number)
        (tmp_path / "JPEGImages").mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "JPEGImages" / f"2007_{number}.jpg")
        for folder in ("SegmentationClass", "SegmentationObject"):
            (tmp_path / folder).mkdir(exist_ok=True)
            drawn = Image.fromarray(np.array([0, 12, 255], np.uint8)[mask])
            drawn.putpalette([number % 256 for number in range(768)])
            drawn.save(tmp_path / folder / f"2007_{number}.png")
    Image.fromarray(image).save(tmp_path / "JPEGImages" / "2008_9.jpg")  # most have boxes alone
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "2007_0.xml").write_text("<annotation/>")
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("2007_0\n2007_2\n")
    (lists / "val.txt").write_text("2007_3\n")
    data = opened(tmp_path)
    assert (len(data.train), len(data.val), len(data.outputs)) == (2, 1, 21)
    assert (mask_of(data.val) == np.array([0, 12, -1])[make_pair(3)[1]]).all()


def test_ade20k_ignores_zero_and_counts_from_one(tmp_path):
    for part in ("training", "validation"):
        image, mask = make_pair(0)
        for folder in ("images", "annotations"):
            (tmp_path / folder / part).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "images" / part / "ADE_0.jpg")
        save_mask(tmp_path / "annotations" / part / "ADE_0.png", np.array([0, 1, 150], np.uint8)[mask])
    (tmp_path / "objectInfo150.txt").write_text("Idx\tRatio\tTrain\tVal\tStuff\tName\n")
    (tmp_path / "sceneCategories.txt").write_text("ADE_0 airport\n")
    data = opened(tmp_path)
    assert (data.outputs[0], data.outputs[149]) == ("wall", "flag")
    assert (mask_of(data.train) == np.array([-1, 0, 149])[make_pair(0)[1]]).all()


def test_cityscapes_ids_become_nineteen_classes(tmp_path):
    for part in ("train", "val"):
        image, mask = make_pair(0)
        folder = tmp_path / "leftImg8bit" / part / "ulm"
        folder.mkdir(parents=True)
        Image.fromarray(image).save(folder / "ulm_0_leftImg8bit.png")
        save_mask(
            tmp_path / "gtFine" / part / "ulm" / "ulm_0_gtFine_labelIds.png", np.array([7, 33, 4], np.uint8)[mask]
        )
        save_mask(tmp_path / "gtFine" / part / "ulm" / "ulm_0_gtFine_color.png", COLOURS[mask])
        save_mask(tmp_path / "gtFine" / part / "ulm" / "ulm_0_gtFine_instanceIds.png", mask.astype(np.uint16) * 7000)
        (tmp_path / "gtFine" / part / "ulm" / "ulm_0_gtFine_polygons.json").write_text("{}")
    (tmp_path / "leftImg8bit" / "test" / "bonn").mkdir(parents=True)
    Image.fromarray(image).save(tmp_path / "leftImg8bit" / "test" / "bonn" / "bonn_0_leftImg8bit.png")
    data = opened(tmp_path)
    assert len(data.outputs) == 19
    assert (mask_of(data.train) == np.array([0, 18, -1])[make_pair(0)[1]]).all()


def test_panoptic_segments_become_their_categories(tmp_path):
    image, mask = make_pair(0)
    ids = np.array([0, 5 + 256 * 3, 70000])[mask]
    for part in ("train", "val"):
        (tmp_path / f"{part}2017").mkdir()
        Image.fromarray(image).save(tmp_path / f"{part}2017" / "000.jpg")
        colours = np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype(np.uint8)
        save_mask(tmp_path / "annotations" / f"panoptic_{part}2017" / "000.png", colours)
        told = {
            "categories": [{"id": 9, "name": "cat"}, {"id": 3, "name": "sky"}],
            "images": [{"id": 1, "file_name": "000.jpg"}],
            "annotations": [
                {"image_id": 1, "file_name": "000.png",
                 "segments_info": [{"id": 5 + 256 * 3, "category_id": 9}, {"id": 70000, "category_id": 3}]}
            ],
        }  # fmt: skip
        (tmp_path / "annotations" / f"panoptic_{part}2017.json").write_text(json.dumps(told))
        boxes = {"images": told["images"], "annotations": [], "categories": told["categories"]}
        (tmp_path / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(boxes))
    data = opened(tmp_path)
    assert data.outputs == ("sky", "cat")
    assert (mask_of(data.train) == np.array([-1, 1, 0])[mask]).all()


def test_pets_are_read_by_their_lists(tmp_path):
    (tmp_path / "annotations").mkdir()
    (tmp_path / "images").mkdir()
    for number in range(3):
        image, mask = make_pair(number)
        Image.fromarray(image).save(tmp_path / "images" / f"Abyssinian_{number}.jpg")
        save_mask(tmp_path / "annotations" / "trimaps" / f"Abyssinian_{number}.png", (mask + 1).astype(np.uint8))
    (tmp_path / "annotations" / "trainval.txt").write_text("Abyssinian_0 1 1 1\nAbyssinian_1 1 1 1\n")
    (tmp_path / "annotations" / "test.txt").write_text("Abyssinian_2 1 1 1\n")
    data = opened(tmp_path)
    assert data.outputs == ("pet", "background", "border")
    assert (len(data.train), len(data.val)) == (2, 1)
    (tmp_path / "images" / "Abyssinian_1.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"trainval.txt: 1 of 2 listed images do not exist: 'Abyssinian_1'"):
        opened(tmp_path)
