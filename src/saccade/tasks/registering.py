"""The registry of tasks."""

from typing import TYPE_CHECKING, Any

from ..settings.registry import Registry

if TYPE_CHECKING:
    from .task import Task

TASKS: "Registry[type[Task]]" = Registry("task", group="saccade.tasks", home="saccade.tasks")


def register_task(name: str) -> Any:
    """Return a decorator that registers a task under its name on the command line."""

    def put(task: "type[Task]") -> "type[Task]":
        task.name = name
        return TASKS.register(name)(task)

    return put
