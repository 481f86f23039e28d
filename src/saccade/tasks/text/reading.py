"""Open text datasets: GLUE's layouts, or tables with named columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ...data.open import Data
from ...data.split import TRAIN, VAL, abbreviate
from ...data.table import SPLITS, ordered
from ...settings import DataConfig
from ...support.wording import is_number
from .data import TextSource, TextTargets
from .tables import COLA, ENDINGS, Columns, find_column, open_hub, open_saved, part_of, read_columns

# Column names, in GLUE and elsewhere; pairs first, since one of their columns may have a name of single texts.
PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
    ("#1 string", "#2 string"),
    ("text", "text_pair"),
    ("text", "pair"),
    ("text1", "text2"),
)
SINGLE = ("sentence", "text")
LABELS = ("label", "gold_label", "quality", "is_duplicate", "class", "target")
UNLABELLED = ("", "-", "-1")  # missing labels in GLUE ("-") and on Hugging Face (-1)
MATCHED = "matched"  # the default one of MNLI's two development sets
COLA_NAMES = {"0": "unacceptable", "1": "acceptable"}


@dataclass(frozen=True)
class TextOptions:
    """Options of `--task text`."""

    text: str | None = None  # column of texts; default: by name
    pair: str | None = None  # column of second texts; default: by name, if neither is given
    label: str | None = None  # column of classes; default: by name
    # primary metric: "accuracy", "matthews", or "auto" (matthews for CoLA)
    metric: Literal["auto", "accuracy", "matthews"] = "auto"
    dev: str = MATCHED  # development set to validate on, such as MNLI's "matched" or "mismatched"
    max_length: int | None = None  # most tokens of a text; default: the model's limit
    truncate: bool = False  # truncate longer texts (of a pair the longer one first) instead of refusing them
    scratch: bool = False  # start from random weights, using only the model's configuration

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.max_length is not None and self.max_length < 8:
            raise ValueError(f"max_length = {self.max_length} was given; it must be at least 8 tokens")
        if self.pair is not None and self.text is None:
            raise ValueError("pair was given without text; name both columns")


def open_texts(config: DataConfig, options: TextOptions) -> Data:
    """Open the dataset of the settings, with a reproducible split."""
    if not config.path:
        raise ValueError("no texts were given; name a folder with train.tsv and dev.tsv, or a .csv, .tsv, .jsonl file")
    train, val, notes = _parts(config.path, options)
    if config.val is not None:
        other, held, more = _parts(config.val, options)
        val, notes = held or other, [*notes, *(f"validation: {note}" for note in more)]
    source = _source(train, options, where=config.path, prefix="train")
    source.targets.require(config.path)
    if val is None:
        kept, held_out, told_of = source.hold_out(share=config.val_share, seed=config.split_seed)
        notes += [note.replace("sample", "text") for note in told_of]
        return Data(kept, held_out, _name(config.path), tuple(notes), cut=True)
    validation = _source(val, options, where=config.val or config.path, prefix="dev")
    if any(len(text) != len(source.text(0)) for text in validation.texts):
        kinds = "pairs" if len(source.text(0)) == 2 else "single texts"
        raise ValueError(f"{config.path}: the training texts are {kinds}, but the validation texts are not")
    held_texts = validation.aligned(source.outputs)
    both = len(set(source.texts) & set(held_texts.texts))
    notes += [f"{both} texts are in both the training and the validation split"] if both else []
    absent = [name for name, count in zip(held_texts.outputs, held_texts.counts(), strict=True) if not count]
    notes += [f"classes without validation texts: {abbreviate(absent)}"] if absent else []
    return Data(source, held_texts, _name(config.path), tuple(notes))


def find_columns(columns: Columns, options: TextOptions, *, where: str) -> tuple[str, ...]:
    """Return the names of the one or two text columns."""
    known = {name.strip().lower(): name for name in columns}
    given = [name for name in (options.text, options.pair) if name is not None]
    missing = [name for name in given if name.lower() not in known]
    if missing:
        known_as = abbreviate([*columns], most=20)
        raise ValueError(f"{where} has the columns {known_as}, but {abbreviate(missing)} was given")
    if given:
        return tuple(known[name.lower()] for name in given)
    for pair in PAIRS:
        if all(name in known for name in pair):
            return tuple(known[name] for name in pair)
    single = find_column(columns, SINGLE)
    if single is None:
        raise ValueError(
            f"{where} has the columns {abbreviate([*columns], most=20)}; text columns are recognised by the names "
            f"{' or '.join(SINGLE)}, pairs by names such as {' and '.join(PAIRS[0])}. Name your columns with --task "
            "text:text=COLUMN,pair=COLUMN"
        )
    return (single,)


def _parts(spec: str, options: TextOptions) -> tuple[Columns, Columns | None, list[str]]:
    """Return training and validation columns, and remarks."""
    path = Path(spec).expanduser()
    if spec.startswith("hf:"):
        return _chosen(open_hub(spec), options, spec)
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return _chosen(open_saved(path), options, spec)
    if path.is_dir():
        files = {file.stem: file for file in sorted(path.iterdir()) if file.suffix.lower() in ENDINGS}
        if not files:
            raise ValueError(f"{path} has no text files; it should contain train.tsv and dev.tsv, or {ENDINGS[1:]}")
        roles = _roles(list(files), options, spec)
        return _chosen({name: read_columns(files[name]) for name in roles}, options, spec)
    columns = read_columns(path)
    split = next((columns[name] for name in columns if name.strip().lower() in SPLITS), None)
    if split is None or not {part.lower() for part in split} & set(TRAIN):
        return columns, None, []
    parts = {name: part_of(columns, split, [name]) for name in dict.fromkeys(split)}
    return _chosen(parts, options, spec)


def _roles(names: list[str], options: TextOptions, where: str) -> list[str]:
    """Return the training and, if there is one, the validation split."""
    train = [name for name in names if name.lower() in TRAIN]
    if len(train) != 1:
        raise ValueError(f"{where} has the splits {abbreviate(sorted(names))}; exactly one of them must be named train")
    exact = [name for name in names if name.lower() in VAL]
    several = [name for name in names if name.lower() in {f"{part}_{options.dev}" for part in VAL}]
    held = exact or several
    if len(held) > 1:
        raise ValueError(f"{where}: {abbreviate(held)} all look like the validation split; keep one of them")
    others = [name for name in names if name.lower().startswith(tuple(f"{part}_" for part in VAL))]
    if not held and others:
        raise ValueError(
            f"{where} has several validation splits, {abbreviate(sorted(others))}; choose one with --task text:dev=NAME"
        )
    return [*train, *held]


def _chosen(
    parts: Mapping[str, Columns], options: TextOptions, where: str
) -> tuple[Columns, Columns | None, list[str]]:
    roles = _roles(list(parts), options, where)
    left = {name: part for name, part in parts.items() if name not in roles}
    rows = sum(len(next(iter(part.values()), [])) for part in left.values())
    notes = [f"not used: {rows} rows of {abbreviate(list(left))}"] if left else []
    notes += [f"validated on {roles[1]!r}"] if len(roles) > 1 and roles[1].lower() not in VAL else []
    return parts[roles[0]], parts[roles[1]] if len(roles) > 1 else None, notes


def _source(columns: Columns, options: TextOptions, *, where: str, prefix: str) -> TextSource:
    names = find_columns(columns, options, where=where)
    label = _label(columns, options, where)
    if label in names:
        raise ValueError(f"{where}: the column {label!r} was given as both text and class; name two columns")
    texts = list(zip(*(columns[name] for name in names), strict=True))
    labels = columns[label]
    for row, (one, cell) in enumerate(zip(texts, labels, strict=True), 1):
        if cell in UNLABELLED:
            raise ValueError(f"{where}: row {row} of {prefix} has no label ({cell!r}); fill it in, or remove the row")
        if not all(one):
            raise ValueError(f"{where}: row {row} of {prefix} has an empty text; fill it in, or remove the row")
    cola = tuple(columns) == COLA
    labels = [COLA_NAMES.get(one, one) for one in labels] if cola else labels
    classes = ordered(set(labels))
    _refuse_numbers(classes, len(labels), where)
    lookup = {name: index for index, name in enumerate(classes)}
    metric = ("matthews" if cola else "accuracy") if options.metric == "auto" else options.metric
    how = {name: getattr(options, name) for name in ("max_length", "truncate", "scratch")}
    rows = np.array([lookup[one] for one in labels], dtype=np.int64)
    return TextSource(texts, TextTargets(rows, classes, (), metric, {**how, "columns": list(names)}), prefix=prefix)


def _label(columns: Columns, options: TextOptions, where: str) -> str:
    found = find_column(columns, LABELS if options.label is None else [options.label.lower()])
    if found is None:
        hint = (
            f"class columns are recognised by the names {' or '.join(LABELS)}. Name the column with --task "
            "text:label=COLUMN"
        )
        message = f"label={options.label!r} was given" if options.label is not None else hint
        raise ValueError(f"{where} has the columns {abbreviate([*columns], most=20)}; {message}")
    return found


def _refuse_numbers(classes: tuple[str, ...], count: int, where: str) -> None:
    """Refuse regression targets, as in STS-B."""
    if len(classes) > 20 and len(classes) > count / 10 and all(is_number(name) for name in classes):
        raise ValueError(
            f"{where} has {len(classes)} different numbers as labels of {count} texts, which look like regression "
            "targets. The task text classifies texts; it does not predict numbers from texts"
        )


def _name(spec: str) -> str:
    return spec if spec.startswith("hf") else Path(spec).name or spec
