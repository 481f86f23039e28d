"""VQAv2's JSON files are read as they are downloaded."""

import json

import numpy as np
import pytest

import saccade
from saccade.cli import main
from saccade.deployment.writers import write_predictions
from saccade.runs.run import Run
from saccade.settings import DataConfig
from saccade.support import telling
from saccade.tasks.opening import open_samples
from saccade.tasks.vqa.equal import normalise
from support.questions import make_vilt, questions, write_official, write_questions


def opened(folder):
    return open_samples("vqa", DataConfig(path=str(folder)))[1]


@pytest.mark.parametrize("places", [("train2014", "val2014"), ("Images/mscoco/train2014", "Images/mscoco/val2014")])
def test_files_as_downloaded_become_questions_with_soft_targets(tmp_path, places):
    data = opened(write_official(tmp_path / "VQAv2", places=places))
    assert data.outputs == ("2", "yes")  # the two that are named as the common answers, made equal
    assert (len(data.train), len(data.val), data.cut) == (2, 2, False)
    assert data.train.targets.rows == pytest.approx(np.array([[0, 1], [0.9, 0]]))
    sample = data.val.sample(0)
    assert sample.inputs["text"] == "is it dark"
    assert sample.inputs["image"].shape == (24, 40, 3)
    assert sample.name == "val2014/COCO_val2014_000000000042.jpg"


@pytest.mark.parametrize(("people", "worth", "told"), [(1, 1.0, 0), (2, 1 / 3, 1)])
def test_files_with_answers_of_fewer_people_are_read(tmp_path, people, worth, told):
    folder = write_official(tmp_path / "VQAv2")
    for file in folder.glob("*annotations.json"):
        content = json.loads(file.read_text())
        for row in content["annotations"]:
            row["answers"] = row["answers"][:people]
        file.write_text(json.dumps(content))
    data = opened(folder)
    assert data.train.targets.rows == pytest.approx(np.array([[0, worth], [worth, 0]]))
    assert sum(f"4 rows with answers of fewer than 10 people, {people}" in note for note in data.notes) == told


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("The Man.", "man"),
        ("dont know", "don't know"),
        ("can't", "can't"),
        ("two", "2"),
        ("2:50 p.m.", "2:50 pm"),
        ("girl's  an apple", "girl's apple"),
        ("none", "0"),
        ("the", ""),
        # marks that the evaluation does not know stay
        ("50%", "50%"),
        ("$5", "$5"),
        ("at&t", "at&t"),
        ("#1 * 2 ~ 3 | 4^5", "#1 * 2 ~ 3 | 4^5"),
        # marks that touch no space become one
        ("black/white", "black white"),
        ("t-shirt", "t shirt"),
        ("(left)", "left"),
        # marks that touch a space somewhere vanish everywhere, other marks do not
        ("t-shirt - red", "tshirt red"),
        ("red, white,blue/green", "red whiteblue green"),
        ("yes!\nno", "yes no"),
        # a comma inside of a number lets all marks vanish
        ("1,000.50", "1000.50"),
        ("1,000 black/white", "1000 blackwhite"),
        # periods stay before digits only
        ("1.5", "1.5"),
        (".5 in.", ".5 in"),
        ("a.b", "ab"),
        # contractions are the evaluation's: by lower case, without "I'm" and "she's"
        ("Aint", "ain't"),
        ("itll", "it'll"),
        ("yall'd've", "y'all'd've"),
        ("couldnt've", "couldn't've"),
        ("somebody'd", "somebodyd"),
        ("Im", "im"),
        ("shes", "shes"),
    ],
)
def test_answers_are_made_equal_as_in_the_official_evaluation(given, want):
    assert normalise(given) == want


def test_a_folder_with_a_table_of_questions_is_opened(tmp_path):
    write_questions(tmp_path / "asked", list(questions(8)))
    assert opened(tmp_path / "asked").outputs == ("no", "yes")


def without_the_annotation(folder):
    file = folder / "v2_mscoco_train2014_annotations.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "annotations": content["annotations"][1:]}))


def with_a_question_twice(folder):
    for name, key in (
        ("v2_OpenEnded_mscoco_train2014_questions", "questions"),
        ("v2_mscoco_train2014_annotations", "annotations"),
    ):
        file = folder / f"{name}.json"
        content = json.loads(file.read_text())
        again = next(row for row in content[key] if row["question_id"] == 42001)
        file.write_text(json.dumps({**content, key: [*content[key], again]}))


def with_a_person_twice(folder):
    file = folder / "v2_mscoco_val2014_annotations.json"
    content = json.loads(file.read_text())
    content["annotations"][1]["answers"][3]["answer_id"] = 2
    file.write_text(json.dumps(content))


def without_the_answers(folder):
    file = folder / "v2_mscoco_val2014_annotations.json"
    content = json.loads(file.read_text())
    content["annotations"][1]["answers"] = []
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "v2_mscoco_train2014_annotations.json").unlink(), "0 of train annotations"),
        (without_the_annotation, r"1 questions have none .*42001"),
        (with_a_question_twice, r"train2014_questions.json: 1 question ids are given more than once .*42001"),
        (with_a_person_twice, r"annotations\[1\] has no valid answers \(two with the same answer_id\)"),
        (without_the_answers, r"annotations\[1\] has no valid answers"),
        (lambda folder: (folder / "v2_mscoco_val2014_annotations.json").write_text("{"), "not JSON, or is cut off"),
        (
            lambda folder: (folder / "v2_OpenEnded_mscoco_val2014_questions.json").write_text("[]"),
            "no list 'questions'",
        ),
        (lambda folder: (folder / "train2014").rename(folder / "trained"), "no folder train2014"),
        (lambda folder: next((folder / "val2014").iterdir()).unlink(), "1 listed images do not exist"),
    ],
)
def test_incomplete_downloads_are_refused(tmp_path, spoil, told):
    write_official(tmp_path)
    spoil(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=told):
        opened(tmp_path)


def test_files_that_take_seconds_to_read_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(telling, "LARGE", 700)
    write_official(tmp_path / "V")
    table = write_questions(tmp_path / "asked", list(questions(40)))
    said: list[str] = []
    with telling.saying(said.append):
        opened(tmp_path / "V")
        opened(table)
    assert [line.split(",")[0] for line in said] == [
        "reading v2_mscoco_train2014_annotations.json",
        "reading v2_mscoco_val2014_annotations.json",
        "reading questions.csv",
    ]
    assert all(line.endswith(" MiB ...") for line in said)


def test_a_single_file_or_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no training questions"):
        opened(tmp_path)
    write_official(tmp_path)
    with pytest.raises(ValueError, match="give the folder that holds all of its files"):
        opened(tmp_path / "v2_OpenEnded_mscoco_train2014_questions.json")


def test_a_run_on_the_official_files_is_scored_as_the_official_evaluation_does(tmp_path):
    vilt = make_vilt(tmp_path / "vilt")
    options = {"epochs": 1, "batch_size": 2, "img_size": 32, "device": "cpu", "workers": 0, "quiet": True}
    done = saccade.train(
        str(write_official(tmp_path / "V")), task="vqa", model=str(vilt), out=tmp_path / "r", **options
    )
    given = Run.open(done.path).predictions()
    worth = [{"2": 0.0, "yes": 1.0}, {"2": 0.9, "yes": 0.0}]  # of each question; "two", "two", "2" are three people
    scores = [worth[place][("2", "yes")[answer]] for place, answer in zip(given["place"], given["answer"], strict=True)]
    assert done.score == pytest.approx(sum(scores) / 2)


def test_answers_to_the_official_questions_are_written_as_its_server_takes_them(tmp_path):
    options = {"epochs": 1, "batch_size": 2, "img_size": 32, "device": "cpu", "workers": 0, "quiet": True}
    folder = write_official(tmp_path / "V")
    vilt = make_vilt(tmp_path / "vilt")
    run = saccade.train(str(folder), task="vqa", model=str(vilt), out=tmp_path / "r", **options).path
    (folder / "val2014").rename(folder / "test2015")  # of which test-dev2015 is a part
    for image in (folder / "test2015").iterdir():
        image.rename(image.with_name(image.name.replace("val2014", "test2015")))
    asked = folder / "v2_OpenEnded_mscoco_test-dev2015_questions.json"
    content = json.loads((folder / "v2_OpenEnded_mscoco_val2014_questions.json").read_text())
    content["questions"].append({"question_id": 7, "image_id": 43, "question": "is it there"})
    asked.write_text(json.dumps(content))
    out = tmp_path / "results.json"
    assert main(["predict", str(run), str(asked), "--form", "vqa", "--out", str(out), "--quiet"]) == 0
    found = json.loads(out.read_text())
    said = [one.answer and one.answer.text.split(" ")[0] for one in saccade.predict(run, asked)]
    assert found == [
        {"question_id": number, "answer": answer}
        for number, answer in zip((42000, 42001, 7), (*said[:2], ""), strict=True)
    ]
    assert set(said[:2]) <= {"2", "yes"}
    with pytest.raises(ValueError, match="needs the ids of questions"):
        write_predictions(saccade.predict(run, [f"{next((folder / 'test2015').iterdir())}\tis it"]), form="vqa")
