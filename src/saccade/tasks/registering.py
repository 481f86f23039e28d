"""Tasks by the names that they have on the command line."""

from typing import TYPE_CHECKING, Any

from ..settings.registry import Registry

if TYPE_CHECKING:
    from .task import Task

TASKS: "Registry[type[Task]]" = Registry("task", group="saccade.tasks", home="saccade.tasks")


def register_task(name: str) -> Any:
    """Return a decorator that registers a task under the name it has on the command line."""

    def put(task: "type[Task]") -> "type[Task]":
        task.name = name
        return TASKS.register(name)(task)

    return put
