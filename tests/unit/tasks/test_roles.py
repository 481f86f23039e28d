"""A task is a handful of small roles: nobody has to know more than a dozen methods of any of them."""

import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import saccade.tasks
from saccade.tasks import Task

MOST = 12


def classes() -> list[type]:
    names = [one.name for one in pkgutil.walk_packages(saccade.tasks.__path__, "saccade.tasks.")]
    found = {one for name in names for one in vars(import_module(name)).values() if inspect.isclass(one)}
    return sorted((one for one in found if one.__module__.startswith("saccade.tasks")), key=lambda one: one.__name__)


def own(one: type, *, methods: bool) -> set[str]:
    """Return the names of methods, or of other attributes, that a class defines itself."""
    kinds = (staticmethod, classmethod, property)
    found = {name: value for name, value in vars(one).items() if not name.startswith("__")}
    return {name for name, value in found.items() if (inspect.isfunction(value) or isinstance(value, kinds)) == methods}


def overridden(*, methods: bool) -> dict[type, set[str]]:
    """Return, for each class, the names of its own and of its bases that some other class of ours overrides."""
    names = {one: own(one, methods=methods) for one in classes()}
    changed = {
        one: names[one] & set().union(*(names[other] for other in names if issubclass(other, one) and other is not one))
        for one in names
    }
    return {one: set().union(*(changed[base] for base in one.__mro__ if base in changed)) for one in names}


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
