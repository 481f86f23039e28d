"""VQAv2's own files: questions and annotations in JSON, and images named as in COCO."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...data.split import abbreviate
from ...support.telling import tell_large
from .equal import normalise
from .questions import QuestionTable, agreement

QUESTIONS, ANNOTATIONS = "questions.json", "annotations.json"  # how the names of the files end
ROLES = ("train", "val")  # in the names of the files
PLACES = (".", "images", "Images", "Images/mscoco")  # where the folders of images may lie
LAYOUT = (
    "v2_OpenEnded_mscoco_train2014_questions.json and v2_mscoco_train2014_annotations.json, the same two for val2014, "
    "and the images in the folders train2014 and val2014"
)


def read_official(folder: Path) -> tuple[dict[str, QuestionTable], list[str]]:
    """Read VQAv2's training and, if there are any, validation questions; also return remarks."""
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist; give a table of questions, or a folder with {LAYOUT}")
    files = [*sorted(folder.glob("*.json")), *sorted(folder.glob("*/*.json"))]
    asked: dict[str, QuestionTable] = {}
    for role in ROLES:
        questions, annotations = (
            [file for file in files if file.name.endswith(kind) and role in file.name]
            for kind in (QUESTIONS, ANNOTATIONS)
        )
        if not questions and not annotations:
            continue
        if len(questions) != 1 or len(annotations) != 1:
            found = [file.name for file in (*questions, *annotations)]
            raise ValueError(
                f"{folder} has {len(questions)} files of {role} questions and {len(annotations)} of {role} annotations "
                f"({abbreviate(found)}); one of each is needed, such as {LAYOUT}"
            )
        asked[role] = _read_split(folder, questions[0], annotations[0])
    if "train" not in asked:
        raise ValueError(f"{folder} has no training questions; it should contain questions.csv, or {LAYOUT}")
    unused = [
        file.name for file in files if file.name.endswith(QUESTIONS) and not any(role in file.name for role in ROLES)
    ]
    return asked, [f"not used, since they have no answers: {abbreviate(unused)}"] if unused else []


def _read_split(folder: Path, questions: Path, annotations: Path) -> QuestionTable:
    found = _rows(questions, "questions", ("question_id", "image_id", "question"))
    answered = _rows(annotations, "annotations", ("question_id", "answers", "multiple_choice_answer"))
    by_question = {row["question_id"]: row for row in answered}
    without = [str(row["question_id"]) for row in found if row["question_id"] not in by_question]
    if without or len(answered) != len(found):
        raise ValueError(
            f"{questions.name} has {len(found)} questions and {annotations.name} {len(answered)} annotations, and "
            f"{len(without)} questions have none ({abbreviate(without)}); give the two files of the same split"
        )
    root, images = _find_images(folder, questions, found)
    rows = [by_question[row["question_id"]] for row in found]
    given = [[normalise(one["answer"]) for one in row["answers"]] for row in rows]
    # The official outputs are chosen by the answer that most people gave.
    named = [name for row in rows if (name := normalise(row["multiple_choice_answer"]))]
    asked = [row["question"] for row in found]
    return QuestionTable(
        root, images, asked, [agreement(one) for one in given], named, list(map(len, given)), questions
    )


def read_questions_of(path: Path) -> Iterator[tuple[int, Path, str]]:
    """Yield id, image and question of one file of VQAv2's questions, which may have no answers."""
    rows = _rows(path, "questions", ("question_id", "image_id", "question"))
    root, images = _find_images(path.parent, path, rows)
    for row, image in zip(rows, images, strict=True):
        yield row["question_id"], root / image, row["question"]


def _find_images(folder: Path, questions: Path, rows: list[dict[str, Any]]) -> tuple[Path, list[str]]:
    """Return the folder with a split's folder of images, and each row's image below it."""
    named = re.search(r"(train|val|test)(?:-dev)?(\d{4})", questions.name)  # test-dev2015 asks about test2015
    if named is None:
        raise ValueError(f"{questions.name} does not name the folder of its images, as train2014 does; rename it")
    split = named[1] + named[2]
    root = next((folder / place for place in PLACES if (folder / place / split).is_dir()), None)
    if root is None:
        raise FileNotFoundError(
            f"{folder} has no folder {split} with the images COCO_{split}_000000000000.jpg, ... that "
            f"{questions.name} asks about; put it beside the file, or into {folder / 'images'}"
        )
    return root, [f"{split}/COCO_{split}_{row['image_id']:012d}.jpg" for row in rows]


KINDS: dict[str, Any] = {
    "question_id": int,
    "image_id": int,
    "question": str,
    "answers": list,
    "multiple_choice_answer": str,
}


def _rows(path: Path, key: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the rows of one file, whose fields have the right types."""
    tell_large(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON, or is cut off ({error}); download it again") from None
    rows = content.get(key) if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path} has no list {key!r}; it should be VQAv2's file as it was downloaded")
    for number, row in enumerate(rows):
        wrong = [name for name in names if not isinstance(row, dict) or not isinstance(row.get(name), KINDS[name])]
        if "answers" in names and not wrong:
            fine = row["answers"] and all(
                isinstance(one, dict) and isinstance(one.get("answer"), str) for one in row["answers"]
            )
            wrong = [] if fine else ["answers"]
            people = [one["answer_id"] for one in row["answers"] if "answer_id" in one] if fine else []
            wrong += ["answers (two with the same answer_id)"] if len(set(map(str, people))) < len(people) else []
        if wrong:
            raise ValueError(
                f"{path}: {key}[{number}] has no valid {' and '.join(wrong)}; it should have {', '.join(names)} as in "
                "VQAv2's own file"
            )
    counts = Counter(row["question_id"] for row in rows)
    if len(counts) < len(rows):
        twice = [str(number) for number, count in counts.items() if count > 1]
        raise ValueError(
            f"{path}: {len(twice)} question ids are given more than once ({abbreviate(twice)}); an id stands for one "
            "question, so remove the others"
        )
    return rows
