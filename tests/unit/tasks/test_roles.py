"""A task is a handful of small roles: nobody has to know more than a dozen methods of any of them."""

import inspect
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import saccade.tasks
from saccade.tasks import Task
from support.names import modules

MOST = 12
NOT_OVERRIDDEN = {"name", "spec"}  # of a task: `register_task` and `Task.build` say them


def classes() -> set[type]:
    """Return all classes of the package, those inside of others too: a base or an override may lie outside of tasks."""
    found, left = set(), [one for module in modules().values() for one in vars(module).values()]
    while left:
        one = left.pop()
        if inspect.isclass(one) and one.__module__.startswith("saccade") and one not in found:
            found.add(one)
            left += vars(one).values()
    return found


def is_method(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, staticmethod | classmethod | property | cached_property)


def own(one: type, *, methods: bool) -> set[str]:
    """Return the names of methods, or of other attributes, that a class defines itself."""
    found = {name: value for name, value in vars(one).items() if not name.startswith("__")}
    return {name for name, value in found.items() if is_method(value) == methods} - NOT_OVERRIDDEN


def overridden(*, methods: bool) -> dict[type, set[str]]:
    """Return, for each class of tasks, the names of its own and of its bases that another class of ours overrides."""
    everything = classes()
    tasks = [one for one in everything if one.__module__.startswith("saccade.tasks")]
    changed: dict[type, set[str]] = {one: set() for one in everything}
    for one in everything:
        for base in set(one.__mro__[1:]) & everything:
            changed[base] |= own(base, methods=methods) & (own(one, methods=True) | own(one, methods=False))
    return {one: set().union(*(changed[base] for base in one.__mro__ if base in changed)) for one in tasks}


@pytest.mark.parametrize("methods", [True, False])
def test_no_class_has_more_than_a_dozen_methods_or_attributes_that_others_override(methods: bool) -> None:
    found = {one.__name__: sorted(names) for one, names in overridden(methods=methods).items() if len(names) > MOST}
    assert not found


def test_a_task_of_an_earlier_version_is_refused_with_the_roles_that_its_methods_belong_to() -> None:
    def method(self):
        return None

    with pytest.raises(TypeError, match="move claims to its Reader; describe, table_rows to its Presenter"):
        type("Old", (Task,), {"claims": method, "describe": method, "table_rows": method})


def test_the_smallest_task_of_saccade_is_small() -> None:
    folder = Path(saccade.tasks.__file__).parent / "regression"
    assert sum(len(file.read_text().splitlines()) for file in folder.glob("*.py")) <= 250
