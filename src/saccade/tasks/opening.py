"""Choose the task and open its dataset, by settings or by the data's layout."""

from dataclasses import dataclass
from typing import Any

from ..data.open import Data, open_configured
from ..data.spec import InputSpec
from ..data.table import Table
from ..data.targets import Targets
from ..settings import ConfigError, DataConfig, ModelConfig
from ..settings.registry import parse_options
from .reader import Reader
from .registering import TASKS
from .task import Task


@dataclass(frozen=True)
class TaskChoice:
    """A task with its options."""

    kind: type[Task]
    options: Any

    @property
    def reader(self) -> Reader:
        """The reader of the task."""
        return self.kind.reader_for(self.options)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Complete a spec with what decoding and building need from samples, options and model."""
        self.reader.complete_spec(spec, data, model)
        self.kind.hosts.complete_spec(spec, model)

    def __str__(self) -> str:
        return self.kind.name


def choose_task(text: str) -> TaskChoice:
    """Read "name" or "name:option=value,..."."""
    name, given = parse_options(text, TASKS, of=lambda kind: kind.Options)
    kind = find_task(name)
    try:
        return TaskChoice(kind, kind.Options(**given))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the task {text!r} was given: {error}") from None


def find_task(name: str) -> type[Task]:
    """Return a task by name."""
    kind = TASKS.find(name)
    kind.name = kind.name or name  # registered by an entry point only
    return kind


def open_samples(text: str | None, config: DataConfig) -> tuple[TaskChoice, Data]:
    """Open the dataset of the settings, for the given task or the one of its layout."""
    if text is not None:
        choice = choose_task(text)
        if config.columns and choice.reader.reads != "image":
            raise ConfigError(
                f"--columns (data.columns) was given, but the task {choice} has its own options for columns, as in "
                f"--task {choice}:label=NAME"
            )
        data = choice.reader.open(config)
        if data.task != choice.kind.name:
            raise ConfigError(
                f"the task {choice} was given, but {data.name} is a dataset for {data.task or 'another task'}; give "
                "samples of that task (docs/data.md describes the layouts), or leave --task out"
            )
        if (config.folds is not None or config.group is not None) and choice.reader.reads != "image":
            raise ConfigError(
                f"data.folds or data.group was given, but the task {choice.kind.name} splits its samples itself"
            )
        return choice, data
    data = open_configured(config, read_by_layout)
    return choose_task(data.task), data


def read_by_layout(table: Table) -> Targets:
    """Read a table by the first task that recognises its columns."""
    readers = (find_task(name).reader_for() for name in TASKS)
    for reader in sorted(readers, key=lambda reader: reader.rank):
        if reader.claims(table):
            return reader.read_table(table)
    raise table.refuse(
        "one with the target: `label` for a class, `labels` for several, or numbers; or give --task "
        f"({', '.join(TASKS)})"
    )
