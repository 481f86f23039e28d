"""VQAv2's JSON files are read as they are downloaded."""

import json

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade.runs.run import Run
from saccade.settings import DataConfig
from saccade.tasks.opening import open_samples
from saccade.tasks.vqa.official import normalise
from support.questions import make_vilt, questions, write_questions

TEN = ["yes"] * 7 + ["Yes.", "no", "the maybe"]


def write_official(folder, *, places=("train2014", "val2014")):
    """Write two questions about one image for each split, in the layout of the download."""
    for split, place in zip(("train2014", "val2014"), places, strict=True):
        (folder / place).mkdir(parents=True)
        Image.fromarray(np.full((24, 40, 3), 90, np.uint8)).save(folder / place / f"COCO_{split}_000000000042.jpg")
        asked = [
            {"question_id": 42000 + n, "image_id": 42, "question": text}
            for n, text in enumerate(("is it dark", "how many"))
        ]
        answers = [
            {
                "question_id": 42000 + n,
                "image_id": 42,
                "multiple_choice_answer": given[0],
                "answers": [{"answer": one, "answer_confidence": "yes", "answer_id": i} for i, one in enumerate(given)],
            }
            for n, given in enumerate((TEN, ["two"] * 2 + ["2"] + ["many"] * 7))
        ]
        header = {"info": {}, "data_type": "mscoco", "data_subtype": split}
        questions_file = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
        questions_file.write_text(json.dumps({**header, "questions": asked}))
        annotations = {**header, "annotations": answers[::-1]}  # in another order
        (folder / f"v2_mscoco_{split}_annotations.json").write_text(json.dumps(annotations))
    return folder


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


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("The Man.", "man"),
        ("dont know", "don't know"),
        ("can't", "can't"),
        ("two", "2"),
        ("1,000.50", "1000.50"),
        ("2:50 p.m.", "2:50 pm"),
        ("black/white", "black white"),
        ("girl's  an apple", "girl's apple"),
        ("none", "0"),
        ("the", ""),
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
