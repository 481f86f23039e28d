"""Numbers in columns of a list."""

import numpy as np

from ...config import ConfigError, ModelConfig
from ...data.open import Data
from ...data.source import Stream
from ...data.spec import InputSpec, are_numbers
from ...data.table import Table
from ...data.targets import Targets
from ..reader import Reader
from .data import claims, read_numbers


class RegressionReader(Reader):
    """Reads numbers."""

    rank = 90  # any column of numbers will do
    read_by = ("columns",)

    def claims(self, table: Table) -> bool:
        """Tell whether a list has numbers and no labels."""
        return claims(table)

    def read_table(self, table: Table) -> Targets:
        """Return the numbers of a table's rows."""
        return read_numbers(table, self.options.columns)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Keep mean and deviation of the training numbers, by which answers are read."""
        if isinstance(data.train, Stream):
            raise ConfigError("the task regress needs samples that can be listed; give a CSV or Parquet list")
        rows = data.train.targets.rows.astype(np.float64)
        spec.extra |= {
            "mean": [float(f"{value:.9g}") for value in rows.mean(0)],
            "std": [float(f"{max(value, 1e-12):.9g}") for value in rows.std(0)],
        }

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse a scale that is not one mean and one deviation a column."""
        if not all(are_numbers(spec.extra.get(name), len(spec.outputs)) for name in ("mean", "std")):
            raise ValueError(f"mean and std of the numbers are {len(spec.outputs)} numbers each, one a column")
