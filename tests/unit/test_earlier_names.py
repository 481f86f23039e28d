"""Whatever the version before let people type or import is still accepted; what was renamed works with a warning.

The names are those of `tests/compat/names.json`, which `tests/compat/collect.py` makes of a version.
"""

import inspect
import json
import sys
import warnings
from pathlib import Path

import pytest

from saccade.settings import TrainConfig, flatten, overlay
from saccade.tasks import Task
from saccade.tasks.moved import ROLES

COMPAT = Path(__file__).parents[1] / "compat"
sys.path.insert(0, str(COMPAT))
import collect  # noqa: E402

BEFORE = json.loads((COMPAT / "names.json").read_text(encoding="utf-8"))
NOW = collect.names()
# Roles of a task have these now: a class that has them is refused, and docs/tasks.md lists where each went.
TASK_ROLES = {name for names in ROLES.values() for name in names.split()} | {
    *("adapt_host", "describe_model", "host", "host_kind", "pack_sample", "pack_text"),  # of hosted tasks
}
# Methods that tasks call on themselves alone; no document has named them.
OWN_CALLS = {"compare", "hear", "tell"}
# Metrics takes the spec of a run instead of its metrics, which a class lists by itself.
ARGUMENTS_GONE = {("saccade.tasks.Metrics", "specs"), ("saccade.tasks.metric.Metrics", "specs")}
# Not promised: words of a document that happen to be those of a function in a file it names.
BY_CHANCE = {"saccade.tasks.regression.data.claims"}


@pytest.mark.parametrize("verb", BEFORE["flags"])
def test_every_flag_is_accepted_with_every_word_it_took(verb):
    now = collect.flags()[verb]
    gone = [flag for flag in BEFORE["flags"][verb] if flag not in now]
    limited = {flag: set(words or ()) - set(now[flag] or words or ()) for flag, words in BEFORE["flags"][verb].items()}
    assert (gone, {flag: words for flag, words in limited.items() if words}) == ([], {})


def test_every_setting_is_accepted_with_every_word_it_took():
    now = collect.settings()
    assert sorted(BEFORE["settings"]) == sorted(name for name in BEFORE["settings"] if name in now)
    for name, words in BEFORE["settings"].items():
        for word in words or ():
            given: dict[str, object] = {name: word}
            assert flatten(overlay(TrainConfig(), given))[name] == word


@pytest.mark.parametrize("group", ["recipes", "families", "models", "readers", "views"])
def test_every_name_is_known(group):
    assert [name for name in BEFORE[group] if name not in NOW[group]] == []


@pytest.mark.parametrize("group", ["plugins", "tasks", "heads", "detectors"])
def test_every_option_is_taken(group):
    gone = {name: sorted(set(options) - set(NOW[group].get(name, ()))) for name, options in BEFORE[group].items()}
    assert {name: options for name, options in gone.items() if options or name not in NOW[group]} == {}


@pytest.mark.parametrize("path", sorted(set(BEFORE["python"]) - BY_CHANCE))
def test_every_documented_name_is_found_and_takes_and_has_what_it_did(path):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = collect.lookup(path)
    assert {one.category for one in told} <= {DeprecationWarning}
    now = collect.shape(found)
    takes = now.get("takes", [])
    taken = inspect.signature(found).parameters.values() if takes else ()
    anything = any(one.kind is one.VAR_KEYWORD for one in taken)
    lost = [name for name in BEFORE["python"][path].get("takes", ()) if name not in takes and not anything]
    assert [name for name in lost if (path, name) not in ARGUMENTS_GONE] == []
    allowed = TASK_ROLES | OWN_CALLS if inspect.isclass(found) and issubclass(found, Task) else set()
    has = {*dir(found), *now.get("has", ())}
    assert [name for name in BEFORE["python"][path].get("has", ()) if name not in has | allowed] == []
