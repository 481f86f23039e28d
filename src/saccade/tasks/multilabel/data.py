"""Targets of multi-label classification: one column of separated labels, or a column for each label."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...data.split import abbreviate
from ...data.table import LABELS, Table
from ...data.targets import Targets

COLUMN, MARK = "labels", "|"
YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no", "")


@dataclass(frozen=True)
class LabelTargets(Targets):
    """Multi-label targets: rows are 0 or 1 for each label, N, labels uint8."""

    task = "multilabel"
    noun = "labels"

    def require(self, where: str) -> None:
        """Refuse labels that no sample has, or that all have."""
        counts = self.counts()
        if not len(self.outputs):
            raise ValueError(f"{where} has no labels; give a column {COLUMN!r} with label names separated by {MARK!r}")
        never = [name for name, count in zip(self.outputs, counts, strict=True) if not count]
        if len(never) == len(self.outputs):
            raise ValueError(
                f"{where}: no sample has any of the labels {abbreviate(never)}; check that the right column is read"
            )

    def describe(self, index: int) -> str:
        """Return a sample's labels as text."""
        return ", ".join(name for name, has in zip(self.outputs, self.rows[index], strict=True) if has) or "no label"

    def counts(self) -> np.ndarray:
        """Return the number of samples with each label."""
        return self.rows.sum(0, dtype=np.int64)

    def strata(self) -> np.ndarray:
        """Return the rarest label of each sample, for stratified splits; the last index means no label."""
        order = np.argsort(self.counts(), kind="stable")
        ranked = self.rows[:, order]
        first = ranked.argmax(1)
        return np.where(ranked.any(1), order[first], len(self.outputs)).astype(np.int64)

    def aligned(self, outputs: tuple[str, ...]) -> "LabelTargets":
        """Return targets with another order of labels; labels that it lacks must be unused."""
        unknown = [
            name for name, count in zip(self.outputs, self.counts(), strict=True) if count and name not in outputs
        ]
        if unknown:
            raise ValueError(
                f"the validation samples have labels that the training samples do not have: {abbreviate(unknown)}; "
                f"the training labels are {abbreviate(outputs)}. Rename or remove them"
            )
        place = {name: column for column, name in enumerate(self.outputs)}
        none = np.zeros(len(self), dtype=np.uint8)
        columns = [self.rows[:, place[name]] if name in place else none for name in outputs]
        return replace(self, rows=np.stack(columns, axis=1), outputs=outputs)


def claims(table: Table) -> bool:
    """Whether there are label columns: one named `labels`, or several of 0 and 1."""
    if table.find([COLUMN]) is not None:
        return True
    rest = table.rest()
    if table.find(LABELS) is not None or len(rest) < 2:
        return False
    return all(cell.lower() in (*YES, *NO) for name in rest for cell in table.columns[name])


def read_labels(table: Table, columns: Sequence[str] | None) -> LabelTargets:
    """Read the labels of a table.

    Args:
        table: table with a column `labels` of names separated by "|", or a column of 0 and 1 for each label.
        columns: names of such columns; default: all except path and split.
    """
    joined = table.find([COLUMN]) if columns is None else None
    if joined is not None:
        return _from_names([[name.strip() for name in cell.split(MARK) if name.strip()] for cell in joined], table)
    table.require(columns or ())
    names = list(columns or table.rest())
    if not names:
        raise table.refuse(
            f"one named {COLUMN!r} with names separated by {MARK!r}, or a column of 0 and 1 for each label"
        )
    rows = np.zeros((len(table), len(names)), dtype=np.uint8)
    for place, name in enumerate(names):
        for row, cell in enumerate(table.columns[name]):
            if cell.lower() not in (*YES, *NO):
                raise ValueError(
                    f"{table.path}: row {row + 1} has {cell!r} in the column {name!r}; label columns hold 0 and 1. "
                    "Select the label columns with multilabel:columns=[...], or list the names of a sample's labels "
                    f"in one column {COLUMN!r}, separated by {MARK!r}"
                )
            rows[row, place] = cell.lower() in YES
    return LabelTargets(rows, tuple(names))


def _from_names(found: list[list[str]], table: Table) -> LabelTargets:
    known = sorted({name for names, train in zip(found, table.train, strict=True) if train for name in names})
    unknown = sorted({name for names in found for name in names} - set(known))
    if unknown:
        raise table.unknown(unknown, known)
    place = {name: column for column, name in enumerate(known)}
    rows = np.zeros((len(found), len(known)), dtype=np.uint8)
    for row, names in enumerate(found):
        for name in names:
            rows[row, place[name]] = 1
    return LabelTargets(rows, tuple(known))
