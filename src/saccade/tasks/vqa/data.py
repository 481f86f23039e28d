"""Sources and targets of visual question answering, with soft scores of answers."""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...data.open import Data
from ...data.source import FileSource, Sample
from ...data.split import abbreviate
from ...data.table import PATHS, SPLITS
from ...data.targets import Targets
from ...settings import DataConfig
from ..text.tables import Columns, find_column, part_of, read_columns
from .official import read_official
from .questions import QuestionTable, agreement, note_few

QUESTIONS, ANSWERS = ("question", "text"), ("answer", "answers", "label")
MARK, SCORE = "|", "="
TABLES = tuple(f"questions{ending}" for ending in (".csv", ".tsv", ".jsonl", ".parquet"))  # looked for in a folder


@dataclass(frozen=True)
class VqaOptions:
    """Options of `--task vqa`."""

    answers: int = 3129  # number of the most frequent training answers that are the outputs
    max_length: int | None = None  # most tokens of a question; default: the model's limit
    truncate: bool = False  # truncate longer questions instead of refusing them
    scratch: bool = False  # start from random weights
    dropout: float | None = None  # of the model; default: that of its config.json

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.answers < 2:
            raise ValueError(f"answers = {self.answers} was given; it must be 2 or more")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout = {self.dropout} was given; it must be from 0 to below 1")


@dataclass(frozen=True)
class AnswerTargets(Targets):
    """Soft scores of answers: rows are N, answers, float32 from 0 to 1."""

    task = "vqa"
    noun = "answers"

    how: tuple[tuple[str, object], ...] = ()  # options for tokenization
    keep_aspect: bool = False  # whether images keep their aspect ratio

    def require(self, where: str) -> None:
        """Refuse fewer than two answers."""
        if len(self.outputs) < 2:
            raise ValueError(f"{where} has {len(self.outputs)} possible answer; the task vqa needs two or more")

    def describe(self, index: int) -> str:
        """Return the answers of a sample, best first."""
        order = np.argsort(-self.rows[index], kind="stable")[:3]
        return (
            ", ".join(self.outputs[n] for n in order if self.rows[index, n] > 0) or "no answer that the model can give"
        )

    def counts(self) -> np.ndarray:
        """Return the number of samples for which each answer is correct."""
        return (self.rows > 0).sum(0, dtype=np.int64)

    def alone(self) -> list[str]:
        """Return nothing, since rare answers are allowed."""
        return []


class QuestionSource(FileSource):
    """Image files with one question each; images may repeat."""

    questions: list[str]

    def subset(self, indices: Sequence[int] | np.ndarray) -> "QuestionSource":
        """Return the source of some of the questions."""
        part = super().subset(indices)
        assert isinstance(part, QuestionSource)
        part.questions = [self.questions[int(index)] for index in indices]
        return part

    def sample(self, index: int) -> Sample:
        """Return a sample, or raise BadSample."""
        inputs = {"image": self.read(index), "text": self.questions[index]}
        return Sample(inputs, self.targets.read(index), self.name(index))

    def fingerprint(self) -> str:
        """Return the SHA-256 of names, answers and questions."""
        digest = hashlib.sha256(super().fingerprint().encode())
        for question in self.questions:
            digest.update(question.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def open_questions(config: DataConfig, options: VqaOptions) -> Data:
    """Open questions about images: a table, or a folder with a table or with VQAv2's JSON files."""
    if not config.path:
        raise ValueError(
            "no questions were given; give a .csv, .tsv, .jsonl or .parquet file with the columns image, question, "
            "answer, or a folder with VQAv2's JSON files"
        )
    path = Path(config.path).expanduser()
    table = next((path / name for name in TABLES if (path / name).is_file()), None) if path.is_dir() else path
    asked, notes = (_read_table(table), []) if table is not None else read_official(path)
    frequent = Counter(asked["train"].named)
    outputs = tuple(
        sorted(name for name, _ in sorted(frequent.items(), key=lambda one: (-one[1], one[0]))[: options.answers])
    )
    how = tuple((name, getattr(options, name)) for name in ("max_length", "truncate", "scratch"))
    sources = {name: _source(part, outputs, how, config.keep_aspect) for name, part in asked.items()}
    sources["train"].targets.require(str(path))
    notes += note_few([people for part in asked.values() for people in part.people])
    notes += [f"{len(frequent) - len(outputs)} rare answers are excluded"] if len(frequent) > len(outputs) else []
    if "val" in sources:
        return Data(sources["train"], sources["val"], path.name, tuple(notes))
    train, held, more = sources["train"].hold_out(share=config.val_share, seed=config.split_seed)
    return Data(train, held, path.name, (*notes, *more), cut=True)


def read_questions(columns: Columns, path: Path, numbers: Sequence[int] | None = None) -> list[tuple[str, str]]:
    """Return image and question of every row, or raise an error that names the row without.

    Args:
        numbers: of the rows in the file; default: from 1.
    """
    images, questions = (_cells(columns, names, path) for names in (PATHS, QUESTIONS))
    for row, image, question in zip(numbers or range(1, len(images) + 1), images, questions, strict=True):
        if not image or not question:
            raise ValueError(f"{path}: row {row} has an empty image or question; fill it in, or remove the row")
    return list(zip(images, questions, strict=True))


def read_answers(cell: str, path: Path, row: int) -> dict[str, float]:
    """Return the answers of a cell with their scores.

    A single answer has score 1. Several, separated by `|`, are those of several people, scored as in VQAv2, where a
    repeated one was given by several of them; or have explicit scores: `yes=1|maybe=0.3`.
    """
    given = [part.strip().lower() for part in cell.split(MARK) if part.strip()]
    if not given:
        raise ValueError(f"{path}: row {row} has no answer; fill it in, or remove the row")
    if any(SCORE in part for part in given):
        shares = [_pair(part, path, row) for part in given]
        if twice := sorted(name for name, count in Counter(name for name, _ in shares).items() if count > 1):
            raise ValueError(f"{path}: row {row} gives the answer {twice[0]!r} two scores; give it one")
        return {name: _share(text, path, row) for name, text in shares}
    return agreement(given)


def _read_table(path: Path) -> dict[str, QuestionTable]:
    """Read a table with the columns image (relative path), question, answer and optionally split."""
    if path.suffix.lower() == ".json" and path.name.endswith(("questions.json", "annotations.json")):
        raise ValueError(f"{path} is one file of VQAv2; give the folder that holds all of its files: {path.parent}")
    columns, parts = read_columns(path), {}
    for name, (part, numbers) in _parted(columns, path).items():
        images, questions = map(list, zip(*read_questions(part, path, numbers), strict=True))
        cells = _cells(part, ANSWERS, path)
        answers = [read_answers(cell, path, row) for row, cell in zip(numbers, cells, strict=True)]
        people = [0 if SCORE in cell else sum(bool(part.strip()) for part in cell.split(MARK)) for cell in cells]
        named = [answer for shares in answers for answer, share in shares.items() if share > 0]
        parts[name] = QuestionTable(path.parent, images, questions, answers, named, people, path)
    return parts


def _pair(part: str, path: Path, row: int) -> tuple[str, str]:
    name, mark, text = part.rpartition(SCORE)
    if not mark or not name.strip():
        raise ValueError(
            f"{path}: row {row} has the answer {part!r}; give either every answer of a row a score, as in yes=0.6, "
            "or none"
        )
    return name.strip(), text


def _share(text: str, path: Path, row: int) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ValueError(f"{path}: row {row} gives an answer the score {text!r}; it must be a number from 0 to 1")
    return share


def _parted(columns: Columns, path: Path) -> dict[str, tuple[Columns, list[int]]]:
    """Return the rows of each split, with their numbers in the file from 1."""
    count = len(next(iter(columns.values())))
    split = next((columns[name] for name in columns if name.strip().lower() in SPLITS), None)
    if split is None:
        return {"train": (columns, list(range(1, count + 1)))}
    named = [cell.lower() for cell in split]
    roles = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
    unknown = [cell for cell, name in zip(split, named, strict=True) if name not in (*roles, "test")]
    if unknown or "train" not in map(roles.get, named):
        raise ValueError(
            f"{path}: the column split has the values {abbreviate(sorted(set(split)))}; they must be train, val or test"
        )
    found: dict[str, tuple[Columns, list[int]]] = {}
    for role in ("train", "val"):
        numbers = [row for row, name in enumerate(named, 1) if roles.get(name) == role]
        if numbers:
            found[role] = part_of(columns, named, [name for name in roles if roles[name] == role]), numbers
    return found


def _cells(columns: Columns, names: Sequence[str], path: Path) -> list[str]:
    found = find_column(columns, names)
    if found is None:
        raise ValueError(f"{path} has the columns {abbreviate(list(columns), most=20)}; it needs {' or '.join(names)}")
    return columns[found]


def _source(
    asked: QuestionTable, outputs: tuple[str, ...], how: tuple[tuple[str, object], ...], keep_aspect: bool
) -> QuestionSource:
    missing = [name for name in dict.fromkeys(asked.images) if not os.path.isfile(asked.root / name)]
    if missing:
        raise FileNotFoundError(
            f"{asked.source}: {len(missing)} listed images do not exist: {abbreviate(missing)}; paths are relative to "
            f"{asked.root}"
        )
    place = {name: column for column, name in enumerate(outputs)}
    rows = np.zeros((len(asked.answers), len(outputs)), dtype=np.float32)
    for row, shares in enumerate(asked.answers):
        for answer, share in shares.items():
            if answer in place:
                rows[row, place[answer]] = share
    source = QuestionSource(asked.root, asked.images, AnswerTargets(rows, outputs, (), how, keep_aspect))
    source.questions = asked.questions
    return source
