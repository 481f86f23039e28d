"""Lists of objects that cannot be read are refused with the place; a clean copy has what is sound."""

import json

import pytest
from PIL import Image

from saccade.data.check import check_data
from saccade.settings import DataConfig
from saccade.tasks.opening import open_samples
from support.detection_sets import kinds, opened
from support.objects import change, make_image, make_objects


@pytest.fixture
def root(tmp_path):
    return make_objects(tmp_path / "set")


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
        whole["annotations"][3].update(area=7)

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
    written = json.loads((tmp_path / "clean" / "train.json").read_text())
    assert written["categories"][0]["name"] == "square"
    assert sum(one["area"] == 7 for one in written["annotations"]) == 1  # as listed, which decides what is small
    assert found == []
