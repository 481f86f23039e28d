"""Reader of multi-label lists."""

import numpy as np

from ...data.open import Data
from ...data.source import Stream
from ...data.spec import InputSpec, are_numbers
from ...data.table import Table
from ...data.targets import Targets
from ...settings import ModelConfig
from ..reader import Reader
from .data import claims, read_labels


class MultilabelReader(Reader):
    """Reads multiple labels."""

    read_by = ("columns",)

    def claims(self, table: Table) -> bool:
        """Whether there is a column `labels`, or several columns of 0 and 1."""
        return claims(table)

    def read_table(self, table: Table) -> Targets:
        """Read the labels of a table."""
        return read_labels(table, self.options.columns)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Store the mean label frequency, the chance level."""
        if not isinstance(data.train, Stream):
            spec.extra["prevalence"] = round(float(np.mean(data.train.counts() / max(len(data.train), 1))), 6)

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse thresholds that are not one probability for each label."""
        limits = spec.extra.get("thresholds")
        if limits is not None and not are_numbers(limits, len(spec.outputs)):
            raise ValueError(f"thresholds must be {len(spec.outputs)} numbers, one per label")
        if not are_numbers([spec.extra.get("prevalence", 0.0)], 1):
            raise ValueError("prevalence must be a number")
