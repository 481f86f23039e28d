import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Protocol, TypedDict

import pytest
from pydantic import Field

from saccade.data.reader import READERS
from saccade.plugins import PLUGINS
from saccade.settings import ConfigError, fit_value
from saccade.settings.registry import Registry
from saccade.tasks import Task

FILE = """
from registry_home import THINGS

@THINGS.register("{name}")
class Thing:
    pass
"""


@pytest.fixture
def things(tmp_path, monkeypatch):
    """A registry whose home is a package of one file and one folder."""
    home = tmp_path / "registry_home"
    (home / "second").mkdir(parents=True)
    (home / "__init__.py").write_text(
        "from saccade.settings.registry import Registry\n"
        'THINGS = Registry("thing", group="saccade.nothing", home="registry_home")\n'
    )
    (home / "first.py").write_text(FILE.format(name="first"))
    (home / "second" / "__init__.py").write_text(FILE.format(name="second"))
    monkeypatch.syspath_prepend(tmp_path)
    from registry_home import THINGS

    yield THINGS
    for name in [name for name in sys.modules if name.startswith("registry_home")]:
        del sys.modules[name]


def test_a_file_or_folder_in_the_home_is_found_by_being_there(things):
    assert "registry_home.first" not in sys.modules
    assert things.find("first").__module__ == "registry_home.first"
    assert sorted(things) == ["first", "second"]


def test_a_registry_may_have_several_homes(things):
    both = Registry("thing", group="saccade.nothing", home=("saccade.recipes", "registry_home"))
    assert (sorted(both), sorted(things)) == ([], ["first", "second"])


def test_a_loss_is_a_plug_in_by_lying_with_the_others():
    assert "saccade.tasks.auxiliary" in PLUGINS.homes
    assert {"drloc", "distill", "token_label"} <= set(PLUGINS)


def test_what_is_not_there_is_refused_with_the_names_there_are(things):
    with pytest.raises(ConfigError, match="unknown thing 'third'; choose from first, second"):
        things.find("third")


def test_every_layout_has_its_reader():
    assert Task.reader.reads  # tasks bring layouts of their own
    assert sorted(READERS) == sorted(
        ["embedded", "hub", "saved", "shards", "npz", "arrays", "parquet", "list", "folder", "masks", "objects"]
    )


def test_two_of_one_name_are_refused():
    things = Registry("thing", group="saccade.nothing", home="saccade.recipes")
    things.register("one")(int)
    with pytest.raises(ValueError, match="two things are called 'one'"):
        things.register("one")(str)


def test_a_thread_that_asks_while_another_is_looking_waits_for_all_of_them(things, tmp_path):
    slow = "import time\ntime.sleep(0.3)\n" + FILE.format(name="aaa")
    (tmp_path / "registry_home" / "aaa.py").write_text(slow)  # is read first, and takes its time
    with ThreadPoolExecutor(2) as pool:
        found = [job.result() for job in [pool.submit(sorted, things) for _ in range(2)]]
    assert found == [["aaa", "first", "second"]] * 2


class Made(Protocol):
    def make(self): ...


class Named(TypedDict):
    name: str


@pytest.mark.parametrize(
    ("hint", "value", "told"),
    [
        (Callable[[int], int] | None, "gelu", "Callable, which can only be given in Python or null"),
        (Made, "x", "Made, which can only be given in Python"),
        (Named | None, 1, "Named, which can only be given in Python or null"),
        (Annotated[int, Field(gt=0)], True, "a whole number"),
        (Annotated[bool, "a word"], 1, "true or false"),
        (Mapping[str, int], {"a": True}, "a mapping of names to values"),
        (Iterable[int], "12", "a list of whole numbers"),
        (Sequence, "12", "a list"),
        (tuple[int, ...], [True], "a list of whole numbers"),
        (tuple[int, str], [1], "a list of 2 values: a whole number, a string"),
    ],
)
def test_an_option_of_any_annotation_is_refused_in_plain_words(hint, value, told):
    with pytest.raises(ConfigError, match=r"^the plug-in theirs: option = .* was given; it takes ") as error:
        fit_value(value, hint, "option", source="the plug-in theirs")
    assert str(error.value).endswith(f"it takes {told}")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Callable[[int], int] | None, None),
        (Made | str, "x"),
        (Annotated[int, Field(gt=0)], 3),
        (Mapping[str, int], {"a": 1}),
        (Iterable[int], [1, 2]),
        (tuple[int, ...], [1, 2, 3]),
        (tuple[int, str], [1, "x"]),
    ],
)
def test_an_option_of_any_annotation_takes_what_fits(hint, value):
    assert fit_value(value, hint, "option", source="") == value
