"""The report on a set finds each kind of fault, and only those."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from saccade.data.check import check_data
from support.images import class_folders, encoded, pixels, write_shard


@pytest.fixture
def folder(tmp_path):
    end = class_folders(tmp_path / "train", {"cat": 12, "dog": 10})
    class_folders(tmp_path / "val", {"cat": 2, "dog": 2}, start=end)
    return tmp_path


def found(report):
    return {(finding.kind, finding.name) for finding in report.findings}


def test_sound_set_is_ok(folder):
    report = check_data(str(folder))
    assert report.ok
    assert report.findings == ()
    assert report.images == {"train": 22, "val": 4}
    assert report.classes == {"cat": 12, "dog": 10}
    assert report.imbalance == pytest.approx(1.2)
    assert report.small_classes == ()
    assert report.sides == (24, 32)
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


@pytest.mark.parametrize(
    ("name", "content", "kind", "serious"),
    [
        ("a.jpg", encoded(90)[:300], "truncated", True),
        ("b.jpg", b"this is text", "misnamed", True),
        ("c.jpg", b"", "unreadable", True),
        ("d.png", encoded(91), "misnamed", False),
        ("e.png", encoded(92, "PNG", height=8, width=40), "tiny", False),
        ("f.png", encoded(93, "PNG", height=200, width=200), "huge", True),
    ],
)
def test_fault_of_an_image_is_found(folder, name, content, kind, serious):
    (folder / "train" / "cat" / name).write_bytes(content)
    report = check_data(str(folder), max_pixels=30_000)
    assert found(report) == {(kind, f"train/cat/{name}")}
    assert report.ok is not serious
    assert report.counts() == {kind: 1}
    assert report.findings[0].reason


def test_duplicates_are_told_from_conflicts_and_leaks(folder):
    copies = {
        70: ("train/cat/x.png", "train/cat/y.bmp"),
        71: ("train/dog/z.png", "val/dog/z.png"),
        72: ("train/cat/w.png", "train/dog/w.png"),
    }
    for seed, places in copies.items():
        for place in places:
            Image.fromarray(pixels(seed)).save(folder / place)
    report = check_data(str(folder))
    assert found(report) == {
        ("duplicate", "train/cat/x.png"),  # the same pixels in another format
        ("in both splits", "train/dog/z.png"),
        ("two labels", "train/cat/w.png"),
    }
    reasons = {finding.kind: finding.reason for finding in report.findings}
    assert "train/cat/y.bmp" in reasons["duplicate"]
    assert "cat, dog" in reasons["two labels"]
    assert not report.ok


def test_traits_are_counted(tmp_path):
    class_folders(tmp_path, {"cat": 3, "dog": 2})
    place = tmp_path / "cat"
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.fromarray(pixels(80))
    image.save(place / "turned.jpg", exif=exif)
    image.convert("L").save(place / "grey.png")
    image.convert("CMYK").save(place / "cmyk.jpg")
    image.convert("RGBA").save(place / "alpha.png")
    Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(place / "deep.png")
    image.save(place / "moving.gif", save_all=True, append_images=[Image.fromarray(pixels(81))])
    report = check_data(str(tmp_path))
    traits = report.traits
    assert {k: traits[k] for k in ("cmyk", "sixteen_bit", "transparent", "animated", "rotated")} == {
        "cmyk": 1,
        "sixteen_bit": 1,
        "transparent": 1,
        "animated": 1,
        "rotated": 1,
    }
    assert traits["grey"] == 2
    assert report.small_classes == ("cat", "dog")


def test_range_of_sixteen_bit_images_is_reported(tmp_path):
    class_folders(tmp_path, {"cat": 3, "dog": 2})
    for name, top in (("bright", 60_000), ("dim", 16_000), ("camera", 4_000)):
        Image.fromarray(np.linspace(0, top, 400).astype(np.uint16).reshape(20, 20)).save(
            tmp_path / "cat" / f"{name}.png"
        )
    report = check_data(str(tmp_path))
    assert found(report) == {("range", "cat/camera.png"), ("dim", "cat/dim.png")}
    assert [finding.serious for finding in report.findings] == [True, False]
    assert "the highest values of 2 images with 16 bits range from 16127 to 60159 of 65535" in report.notes


def test_truncated_shard_is_reported(tmp_path):
    write_shard(tmp_path / "train-0.tar", [(str(n), encoded(n), str(n % 2)) for n in range(10)])
    data = (tmp_path / "train-0.tar").read_bytes()
    (tmp_path / "train-0.tar").write_bytes(data[: len(data) // 2])
    report = check_data(str(tmp_path))
    assert [finding.kind for finding in report.findings] == ["truncated"]
    assert "train-0.tar" in report.findings[0].name


def test_embedded_set_is_sound_and_progress_ends_at_the_total():
    steps = []
    report = check_data(progress=lambda done, total: steps.append((done, total)))
    assert report.ok
    assert report.traits["grey"] == 5000
    assert steps[-1] == (5000, 5000)
    assert steps == sorted(steps)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_found(folder):
    (folder / "train" / "cat" / "0.jpg").chmod(0)
    assert found(check_data(str(folder))) == {("unreadable", "train/cat/0.jpg")}


def test_report_does_not_depend_on_the_number_of_threads(folder):
    (folder / "train" / "cat" / "b.jpg").write_bytes(b"this is text")
    assert check_data(str(folder), workers=1) == check_data(str(folder), workers=5)
