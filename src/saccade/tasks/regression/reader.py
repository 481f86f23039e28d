"""Reader and targets of regression."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...data.open import Data
from ...data.source import Stream
from ...data.spec import InputSpec, are_numbers
from ...data.split import abbreviate
from ...data.table import LABELS, Table
from ...data.targets import Targets
from ...settings import ConfigError, ModelConfig
from ..multilabel.data import COLUMN
from ..reader import Reader

BINS = 10  # quantile bins for stratified splits


@dataclass(frozen=True)
class NumberTargets(Targets):
    """Numbers: rows are N, columns float32."""

    task = "regress"
    noun = "columns"

    def require(self, where: str) -> None:
        """Refuse constant columns."""
        if not len(self.outputs):
            raise ValueError(f"{where} has no column of numbers")
        same = [name for name, column in zip(self.outputs, self.rows.T, strict=True) if np.ptp(column) == 0]
        if len(self) and same:
            raise ValueError(
                f"{where}: the columns {abbreviate(same)} have the same number everywhere, so nothing can be "
                "learned; select the other columns with --task 'regress:columns=[...]'"
            )

    def strata(self) -> np.ndarray:
        """Return the quantile bin of the first column, for stratified splits."""
        rank = np.argsort(np.argsort(self.rows[:, 0], kind="stable"), kind="stable")
        bins = max(min(BINS, len(self) // 4), 1)
        return (rank * bins // len(self)).astype(np.int64)

    def alone(self) -> list[str]:
        """Return nothing, since numbers are not classes."""
        return []


class RegressionReader(Reader):
    """Reads numbers."""

    rank = 90  # any numeric column matches
    read_by = ("columns",)

    def claims(self, table: Table) -> bool:
        """Whether a list has numbers and no labels."""
        rest = table.rest()
        labelled = table.find(LABELS) is not None or table.find([COLUMN]) is not None
        return not labelled and bool(rest) and all(_numeric(table.columns[name]) for name in rest)

    def read_table(self, table: Table) -> Targets:
        """Read the given columns of a table, or all numeric ones."""
        columns, left = self.options.columns, []
        table.require(columns or ())
        if columns is None:
            columns = [name for name in table.rest() if _numeric(table.columns[name])]
            left = [name for name in table.rest() if name not in columns]
        if not columns:
            raise table.refuse("a column of numbers; give one, or name it with --task 'regress:columns=[...]'")
        rows = np.empty((len(table), len(columns)), dtype=np.float32)
        for place, name in enumerate(columns):
            for row, cell in enumerate(table.columns[name]):
                if (found := _number(cell)) is None:
                    raise ValueError(
                        f"{table.path}: row {row + 1} has {cell!r} in the column {name!r}, which is not a finite "
                        "number; fill it in or remove the row"
                    )
                rows[row, place] = found
        notes = [f"columns with values that are not numbers are ignored: {abbreviate(left)}"] if left else []
        return NumberTargets(rows, tuple(columns), tuple(notes))

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Store mean and standard deviation of the training targets."""
        if isinstance(data.train, Stream):
            raise ConfigError("the task regress needs samples that can be listed; give a CSV or Parquet list")
        rows = data.train.targets.rows.astype(np.float64)
        scale = {"mean": rows.mean(0), "std": rows.std(0).clip(1e-12)}
        spec.extra |= {name: [float(f"{value:.9g}") for value in values] for name, values in scale.items()}

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse a scale without one mean and one standard deviation for each column."""
        if not all(are_numbers(spec.extra.get(name), len(spec.outputs)) for name in ("mean", "std")):
            raise ValueError(f"mean and std of the targets must be {len(spec.outputs)} numbers each, one per column")


def _numeric(cells: Sequence[str]) -> bool:
    """Whether all cells of a column are finite numbers."""
    return bool(cells) and all(_number(cell) is not None for cell in cells)


def _number(cell: str) -> float | None:
    try:
        found = float(cell)
    except ValueError:
        return None
    return found if abs(found) < 1e30 else None  # not true of nan either
