from pathlib import Path

import pytest

from saccade.support.files import free_folder, whole_folder


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_folder_takes_the_place_of_the_old_one_when_all_is_written(tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "old.txt").write_text("old")
    with whole_folder(tmp_path / "page") as draft:
        (draft / "new.txt").write_text("new")
        assert (tmp_path / "page" / "old.txt").exists()
    assert names(tmp_path) == ["page", "page/new.txt"]


def test_folder_that_is_not_finished_leaves_the_old_one_and_nothing_beside_it(tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "old.txt").write_text("old")
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "page") as draft:
        (draft / "not there" / "new.txt").write_text("new")
    assert names(tmp_path) == ["page", "page/old.txt"]


def test_folder_is_made_with_those_above_it(tmp_path):
    with whole_folder(tmp_path / "a" / "b") as draft:
        (draft / "x").touch()
    assert names(tmp_path) == ["a", "a/b", "a/b/x"]


@pytest.mark.parametrize(
    ("held", "overwrite", "found"), [("", False, "out"), ("x", False, "out-2"), ("x", True, "out")]
)
def test_folder_gets_a_number_only_where_something_would_be_lost(held, overwrite, found, tmp_path):
    (tmp_path / "out").mkdir()
    if held:
        (tmp_path / "out" / held).touch()
    assert free_folder(tmp_path / "out", overwrite=overwrite) == tmp_path / found


def test_folder_that_is_here_gets_a_number_beside_it(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "x").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert free_folder(Path(), overwrite=False) == tmp_path / "here-2"
