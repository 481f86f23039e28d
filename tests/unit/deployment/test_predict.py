import gc
import io
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saccade.deployment import paths
from saccade.deployment.paths import NoImages, count_paths, find_paths, read_names, walk
from saccade.deployment.predict import predict
from saccade.deployment.writers import write_predictions
from saccade.tasks import Classify
from support.exports import CLASSES, Colours
from support.images import encoded


def paint(path: Path, colour: int, *, size=(12, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    array[..., colour] = 220
    Image.fromarray(array).save(path)
    return path


def test_answers_come_in_the_order_of_the_files(tmp_path):
    colours = [k % 3 for k in range(23)]
    files = [paint(tmp_path / f"{k:02d}.png", colour) for k, colour in enumerate(colours)]
    predictor = Colours()
    got = list(predict(predictor, tmp_path, batch_size=5, top=2, workers=3))
    assert [p.name for p in got] == [str(file) for file in files]
    assert [p.answers[0][0] for p in got] == [CLASSES[colour] for colour in colours]
    assert all(len(p.answers) == 2 and p.answers[0][1] > p.answers[1][1] for p in got)
    assert predictor.batches == [5, 5, 5, 5, 3]


def test_bad_files_are_reported_in_their_place_and_the_rest_is_asked(tmp_path):
    good = [paint(tmp_path / "a.png", 0), paint(tmp_path / "e.png", 1)]
    (tmp_path / "b.png").write_bytes(b"")
    (tmp_path / "c.jpg").write_bytes(encoded(1)[:200])
    (tmp_path / "d.png").write_text("hello")
    got = list(predict(Colours(), [tmp_path, tmp_path / "gone.png"], batch_size=2))
    problems = [p.problem for p in got]
    assert [p.name for p in got if p.problem is None] == [str(path) for path in good]
    assert [bool(p) for p in problems] == [False, True, True, True, False, True]
    for problem, word in zip(
        problems[1:4] + problems[5:], ("empty", "truncated", "text", "does not exist"), strict=True
    ):
        assert word in problem
    assert all(not p.answers for p in got if p.problem)


def test_a_batch_of_bad_files_only_asks_nothing(tmp_path):
    predictor = Colours()
    got = list(predict(predictor, [tmp_path / "x.png", tmp_path / "y.png"]))
    assert [bool(p.problem) for p in got] == [True, True]
    assert predictor.batches == []


def test_images_are_framed_as_the_model_wants_them(tmp_path):
    wide = np.zeros((10, 40, 3), dtype=np.uint8)
    wide[..., 2] = 250
    wide[:, 15:25] = (250, 0, 0)  # the middle square alone is red
    Image.fromarray(wide).save(tmp_path / "wide.png")
    (got,) = predict(Colours(), tmp_path / "wide.png")
    assert got.answers[0][0] == "red"


def test_kept_images_are_small_and_others_are_not_kept(tmp_path):
    paint(tmp_path / "large.png", 0, size=(1500, 800))
    (kept,) = predict(Colours(), tmp_path, keep=True)
    assert kept.image.shape == (341, 640, 3)
    (other,) = predict(Colours(), tmp_path)
    assert other.image is None


@pytest.mark.parametrize("wrong", ["batch_size", "top", "workers"])
def test_numbers_below_one_are_refused_at_once(tmp_path, wrong):
    with pytest.raises(ValueError, match=f"{wrong}=0"):
        predict(Colours(), tmp_path, **{wrong: 0})


def test_more_classes_than_there_are_gives_all(tmp_path):
    paint(tmp_path / "a.png", 0)
    (got,) = predict(Colours(), tmp_path, top=50)
    assert {name for name, _ in got.answers} == set(CLASSES)


def test_a_table_has_no_columns_for_classes_the_model_lacks(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")  # bad, so that the first answer tells nothing of the classes
    paint(tmp_path / "b.png", 0)
    write_predictions(predict(Colours(), tmp_path, top=5), out=tmp_path / "o.csv", top=5)
    head = (tmp_path / "o.csv").read_text().splitlines()[0]
    assert head == "name,class,confidence,class_2,confidence_2,class_3,confidence_3,problem"


def test_of_equal_shares_the_first_class_comes_first():
    answer = Classify.presenter(Colours().spec).describe(np.array([0.25, 0.5, 0.25]), top=3)
    assert [name for name, _, _ in answer.rows] == ["green", "red", "blue"]


def test_a_broken_off_job_reads_no_further(tmp_path):
    path = paint(tmp_path / "a.png", 0)
    taken = []

    def names():
        for number in range(10_000):
            taken.append(number)
            yield path

    stream = predict(Colours(), names(), batch_size=4, workers=2)
    next(stream)
    stream.close()
    assert len(taken) < 50


@pytest.mark.parametrize("many", [3_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_many_files_take_the_memory_of_few(tmp_path, many):
    path = paint(tmp_path / "a.png", 0)
    peaks = []
    for count in (300, 300, many):  # the first warms up
        gc.collect()
        tracemalloc.start()
        asked = sum(1 for _ in predict(Colours(), (path for _ in range(count)), batch_size=16, workers=2))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert asked == count
    # To keep the predictions, 400 bytes each at least, would take a megabyte more; what the collector has not yet
    # come to is less than half of that.
    assert peaks[2] < peaks[1] + 400_000, peaks


def test_folders_are_walked_in_order_without_hidden_files_or_other_kinds(tmp_path):
    for name in ("b/2.png", "b/10.PNG", "a.jpg", "c.txt", ".hidden/x.png", ".y.png", "b/deep/z.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "ring").symlink_to(tmp_path, target_is_directory=True)
    names = [str(path.relative_to(tmp_path)) for path in walk(str(tmp_path))]
    assert names == ["a.jpg", "b/10.PNG", "b/2.png", "b/deep/z.webp"]


def test_a_large_folder_is_read_in_sorted_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "PART", 7)
    want = [f"{number:03d}.png" for number in range(50)]
    for name in reversed(want):
        (tmp_path / name).touch()
    assert [path.name for path in walk(str(tmp_path))] == want


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_listed_is_reported_and_the_rest_is_asked(tmp_path):
    closed = tmp_path / "a"
    closed.mkdir()
    closed.chmod(0)
    paint(tmp_path / "b.png", 0)
    try:
        got = list(predict(Colours(), tmp_path))
    finally:
        closed.chmod(0o700)
    assert [bool(p.problem) for p in got] == [True, False]


def test_a_folder_that_vanishes_is_reported_and_the_rest_is_asked(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    paint(tmp_path / "b.png", 0)
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: real(path + "/gone" if path.endswith("/a") else path))
    got = list(predict(Colours(), tmp_path))
    assert [bool(p.problem) for p in got] == [True, False]


def test_names_are_read_from_a_list_whatever_their_bytes():
    odd = b"caf\xe9.png"
    lines = b"one.png\r\n\n two words.png\n" + odd
    assert [os.fsencode(path) for path in read_names(io.BytesIO(lines))] == [b"one.png", b" two words.png", odd]
    zeros = b"a\nb.png\0" + odd + b"\0"
    assert [os.fsencode(path) for path in read_names(io.BytesIO(zeros), null=True)] == [b"a\nb.png", odd]


def test_a_list_is_read_as_it_comes():
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "wb", buffering=0) as sink:
        names = read_names(source)
        sink.write(b"first.png\nsec")
        assert next(names).name == "first.png"
        sink.write(b"ond.png\n")
        assert next(names).name == "second.png"


def test_what_is_no_list_is_refused_before_it_fills_the_memory():
    with pytest.raises(NoImages, match="--null"):
        list(read_names(io.BytesIO(b"x" * 1_000_000)))


def test_files_are_counted_unless_they_come_from_standard_input(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.png").touch()
    assert count_paths([tmp_path, "other.png"]) == 5
    assert count_paths([tmp_path, "-"]) is None


def test_a_dash_stands_for_standard_input(tmp_path):
    path = paint(tmp_path / "a.png", 0)
    listed = io.BytesIO(os.fsencode(path) + b"\n")
    assert list(find_paths(["-"], stdin=listed)) == [path]


def test_a_name_with_a_zero_byte_is_bad_not_fatal():
    (got,) = predict(Colours(), ["a\0b.png"])
    assert got.problem
