import csv
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saccade.data.spec import InputSpec
from saccade.deployment import writers as writing
from saccade.deployment.paths import NoImages
from saccade.deployment.predict import Prediction, Predictions
from saccade.deployment.writers import draw, printable
from saccade.tasks import Answer, Classify

SPEC = InputSpec(("cat", "dog", "emu", "fox", "gnu"), 3, 8, [0.5] * 3, [0.5] * 3)


def answer(*pairs):
    """An answer of classes and shares, likeliest first."""
    return Answer(pairs[0][0], tuple((name, f"{share:.1%}", share) for name, share in pairs), said=(pairs[0][0],))


GOOD = Prediction("a.png", answer(("cat", 0.75), ("dog", 0.25)))
BAD = Prediction("b.png", None, "the file is empty (0 bytes)")


def write_predictions(predictions, task=Classify, spec=SPEC, **options):
    return writing.write_predictions(Predictions(iter(predictions), task, spec), **options)


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_table_has_a_row_a_file_and_columns_for_each_rank(tmp_path):
    tally = write_predictions([GOOD, BAD], out=tmp_path / "o.csv", top=3)
    first, second = rows(tmp_path / "o.csv")
    assert list(first) == [
        "name", "class", "confidence", "class_2", "confidence_2", "class_3", "confidence_3", "problem",
    ]  # fmt: skip
    assert (first["name"], first["class"], first["confidence"], first["class_2"]) == ("a.png", "cat", "0.75", "dog")
    assert first["class_3"] == first["problem"] == ""
    assert second["problem"] == "the file is empty (0 bytes)"
    assert (tally.asked, tally.bad, tally.ok) == (2, 1, True)


def test_lines_of_json_hold_answers_or_the_problem(tmp_path):
    write_predictions([GOOD, BAD], out=tmp_path / "o.jsonl")
    first, second = map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines())
    assert first["name"] == "a.png"
    assert [(one["class"], one["probability"], one["share"]) for one in first["answers"]] == [
        ("cat", 0.75, 0.75),
        ("dog", 0.25, 0.25),
    ]
    assert second == {"name": "b.png", "problem": "the file is empty (0 bytes)"}


@pytest.mark.parametrize("name", ["new\nline.png", 'quo"te,comma.png', "r\rn.png", "日本.png", "caf\udce9.png"])
def test_any_name_survives(tmp_path, name):
    prediction = Prediction(name, GOOD.answer)
    write_predictions([prediction], out=tmp_path / "o.jsonl")
    assert json.loads((tmp_path / "o.jsonl").read_text())["name"] == name
    write_predictions([prediction], out=tmp_path / "o.csv")
    (row,) = rows(tmp_path / "o.csv")
    assert row["name"] == name.replace("\udce9", "\\udce9")


@pytest.mark.parametrize("name", ["=1+1.png", "+a", "-a", "@SUM(A1)", "\t=x"])
def test_no_cell_is_a_formula(tmp_path, name):
    write_predictions([Prediction(name, answer((name, 1.0)))], out=tmp_path / "o.csv")
    (row,) = rows(tmp_path / "o.csv")
    assert row["name"] == row["class"] == f"'{name}"


def test_an_interrupted_job_keeps_what_was_written_under_another_name(tmp_path):
    def stream():
        yield GOOD
        yield GOOD
        raise KeyboardInterrupt

    out = tmp_path / "o.csv"
    with pytest.raises(KeyboardInterrupt):
        write_predictions(stream(), out=out)
    assert not out.exists()
    assert len(rows(tmp_path / "o.csv.part")) == 2
    write_predictions([GOOD], out=out)
    assert len(rows(out)) == 1
    assert not (tmp_path / "o.csv.part").exists()


def test_a_table_that_is_there_is_replaced_once_the_new_one_is_whole(tmp_path):
    out = tmp_path / "o.csv"
    out.write_text("older")

    def broken():
        yield GOOD
        assert out.read_text() == "older"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_predictions(broken(), out=out)
    assert out.read_text() == "older"
    assert write_predictions([GOOD], out=out).path == out
    assert len(rows(out)) == 1
    assert os.listdir(tmp_path) == ["o.csv"]


def test_a_device_is_written_to_as_it_is():
    assert write_predictions([GOOD], out="/dev/null", form="csv").path == Path("/dev/null")
    assert Path("/dev/null").is_char_device()
    assert not Path("/dev/null.part").exists()


def test_nothing_to_ask_is_an_error_and_leaves_no_file(tmp_path):
    with pytest.raises(NoImages, match="no image found"):
        write_predictions([], out=tmp_path / "o.csv")
    assert os.listdir(tmp_path) == []


def test_all_bad_is_not_ok(tmp_path):
    assert not write_predictions([BAD, BAD], out=tmp_path / "o.csv").ok


def test_without_a_file_the_table_goes_to_standard_output(capsys):
    write_predictions([GOOD])
    assert capsys.readouterr().out.splitlines()[1].startswith("a.png,cat,0.75")
    write_predictions([GOOD], out="-", form="jsonl")
    assert json.loads(capsys.readouterr().out)["name"] == "a.png"
    assert not sys.stdout.closed


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ValueError, match="is a directory"):
        write_predictions([GOOD], out=tmp_path)
    with pytest.raises(ValueError, match="no such directory"):
        write_predictions([GOOD], out=tmp_path / "no" / "o.csv")
    with pytest.raises(ValueError, match="form='xml'"):
        write_predictions([GOOD], out=tmp_path / "o", form="xml")
    with pytest.raises(ValueError, match=r"o\.txt: unknown file type; use a name that ends in \.csv or \.jsonl"):
        write_predictions([GOOD], out=tmp_path / "o.txt")
    assert write_predictions([GOOD], out=tmp_path / "o.txt", form="jsonl").path == tmp_path / "o.txt"
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        write_predictions([GOOD], draw=tmp_path / "file")


def test_drawn_images_are_kept_apart_and_stay_in_their_folder(tmp_path, capsys):
    pixels = np.full((30, 40, 3), 90, dtype=np.uint8)
    names = ["x/a.png", "y/a.png", "../../..", "bad.png", "we ird/\udce9\n.png"]
    predictions = [Prediction(n, None if n == "bad.png" else GOOD.answer, None, pixels) for n in names]
    write_predictions(predictions, draw=tmp_path / "d")
    found = sorted(os.listdir(tmp_path / "d"))
    assert [name[:7] for name in found] == ["0000000", "0000001", "0000002", "0000004"]
    assert os.listdir(tmp_path) == ["d"]
    assert capsys.readouterr().out == ""
    for name in found:
        with Image.open(tmp_path / "d" / name) as image:
            image.load()


def test_the_likeliest_class_is_drawn_with_the_longest_bar():
    pixels = np.zeros((200, 300, 3), dtype=np.uint8)
    image = np.asarray(draw(pixels, answer(("cat", 0.8), ("a dog with a very long name " * 9, 0.1)))).astype(int)
    assert image.shape[1] == 300
    assert (image[:200] == 0).all()
    step = 19
    bars = [(image[200 + 3 + place * step + 15] != 255).any(axis=1).sum() for place in range(2)]
    assert 0.7 * 300 < bars[0] <= 0.85 * 300
    assert bars[1] < bars[0]


@pytest.mark.parametrize("name", ["", "日本語", "\udce9", "\x00\n", "a" * 5000])
def test_any_class_name_can_be_drawn(name):
    draw(np.zeros((1, 3000, 3), dtype=np.uint8), answer((name, 1.0)))
    draw(np.zeros((8, 8, 3), dtype=np.uint8), answer((name, 0.0)))


def test_printable_text_does_nothing_to_a_terminal():
    assert printable("a\x1b[31mé\n\udce9") == "a\\x1b[31mé\\n\\udce9"
