"""The role Reader: opens datasets, reads targets, and completes the spec."""

from typing import Any, ClassVar

from ..data.open import Data, open_configured
from ..data.spec import InputSpec
from ..data.table import Table
from ..data.targets import Targets
from ..settings import DataConfig, ModelConfig


class Reader:
    """Opens the samples of a task.

    Args:
        task: name of the task.
        options: options of the task.

    Attributes:
        reads: kind of a sample: "image", "text" or "question".
        rank: readers are tried in ascending order; general ones have a high rank.
        read_by: options that affect reading.
    """

    reads: ClassVar[str] = "image"
    rank: ClassVar[int] = 50
    read_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, task: str, options: Any) -> None:
        self.task, self.options = task, options

    def claims(self, table: Table) -> bool:
        """Whether a table's columns identify this task."""
        return False

    def read_table(self, table: Table) -> Targets:
        """Read the targets of a table, or raise ValueError."""
        raise table.refuse(f"the layout of the task {self.task}, which does not read lists")

    def open(self, config: DataConfig) -> Data:
        """Open the dataset of the settings."""
        return open_configured(config, self.read_table, task=self.task)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Store in a spec what decoding needs from samples, options and model, such as a scale."""

    def check_spec(self, spec: InputSpec) -> None:
        """Raise ValueError for an invalid spec, which may be untrusted."""

    def options_of(self, spec: InputSpec) -> Any:
        """Return the options stored in a trained model's spec, with defaults for others."""
        return type(self.options)()
