"""The role of a task that reads data: whose a table is, what it says of its rows, and what the spec keeps of both."""

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
        options: of the task.

    Attributes:
        reads: what a sample is: "image", "text" or "question".
        rank: tasks are asked from the lowest on whether a list is theirs; one that takes nearly any has a high one.
        read_by: options by which samples are read.
    """

    reads: ClassVar[str] = "image"
    rank: ClassVar[int] = 50
    read_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, task: str, options: Any) -> None:
        self.task, self.options = task, options

    def claims(self, table: Table) -> bool:
        """Tell whether a table's columns say by themselves that they are for this task."""
        return False

    def read_table(self, table: Table) -> Targets:
        """Return what a table's columns say of its rows, or raise ValueError."""
        raise table.refuse(f"what the task {self.task} reads; this task reads no lists")

    def open(self, config: DataConfig) -> Data:
        """Open the samples that settings name."""
        return open_configured(config, self.read_table, task=self.task)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Add to a spec what answers are read by and samples, options or the model tell, such as a scale or crops."""

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse, by ValueError, what no answer can be read by: the spec of a file from elsewhere may say anything."""

    def options_of(self, spec: InputSpec) -> Any:
        """Return the options that the spec of a trained model keeps, with the defaults of others."""
        return type(self.options)()
