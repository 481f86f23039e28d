import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from saccade.data.reader import READERS
from saccade.plugins import PLUGINS
from saccade.settings import ConfigError
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
