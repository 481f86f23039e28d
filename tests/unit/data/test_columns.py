"""The columns of a list can be named, and images that are listed without folder or ending are found."""

import csv

import pytest

import saccade
from saccade.cli import main
from saccade.data.open import open_data
from saccade.data.table import columns_as_trained, parse_columns
from saccade.settings import ConfigError
from saccade.tasks.opening import read_by_layout
from support.images import encoded
from support.training import TINY


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture
def breeds(tmp_path):
    """A list as the pets have it: names without folder and ending, breeds, a column `label` of something else."""
    (tmp_path / "images").mkdir()
    rows = []
    for number in range(24):
        (tmp_path / "images" / f"pet_{number}.jpg").write_bytes(encoded(number))
        row = {"name": f"pet_{number}", "breed": "ab"[number % 2], "label": "zero", "age": number, "split": "train"}
        rows.append(row | {"split": "val" if number >= 16 else "train"})
    return write(tmp_path / "labels.csv", rows)


def test_named_columns_are_read_in_place_of_those_that_have_their_names(breeds):
    data = open_data(breeds, columns={"image": "name", "label": "breed"})
    assert data.classes == ("a", "b")
    assert (len(data.train), len(data.val)) == (16, 8)
    assert data.train.read(0).shape[2] == 3
    assert "images/NAME.jpg is read" in " ".join(data.notes)


def test_columns_of_numbers_and_of_labels_are_named_alike(breeds, tmp_path):
    numbers = open_data(breeds, columns={"image": "name", "numbers": "age"}, read_targets=read_by_layout)
    assert (numbers.task, numbers.outputs) == ("regress", ("age",))
    rows = [{"f": f"images/pet_{n}.jpg", "x": n % 2, "y": 1 - n % 2, "z": "text"} for n in range(24)]
    several = write(tmp_path / "several.csv", rows)
    labels = open_data(several, columns={"image": "f", "labels": "x|y"}, read_targets=read_by_layout)
    assert (labels.task, labels.outputs) == ("multilabel", ("x", "y"))
    rows = [{"f": f"images/pet_{n}.jpg", "tags": "x|y" if n % 2 else "x"} for n in range(24)]
    joined = write(tmp_path / "joined.csv", rows)
    labels = open_data(joined, columns={"image": "f", "labels": "tags"}, read_targets=read_by_layout)
    assert (labels.task, labels.outputs) == ("multilabel", ("x", "y"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("image", "such as image=name,label=breed"),
        ("image=name,image=breed", "each role once"),
        ("imge=name", "did you mean 'image'?"),
        ("image=", "expected ROLE=COLUMN"),
        ("", "expected ROLE=COLUMN"),
    ],
)
def test_what_is_no_naming_of_columns_is_refused(given, told):
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        parse_columns(given)


def test_columns_that_are_not_there_and_sets_without_columns_are_refused(breeds, tmp_path):
    with pytest.raises(ValueError, match="but not 'bred'; did you mean 'breed'"):
        open_data(breeds, columns={"image": "name", "label": "bred"})
    with pytest.raises(ValueError, match="is not a list"):
        open_data(str(tmp_path), columns={"image": "name"})
    with pytest.raises(ValueError, match="only labels and numbers can have several"):
        open_data(breeds, columns={"image": "name|breed"})


def test_a_list_to_evaluate_is_read_by_the_columns_of_training(breeds, tmp_path):
    """Its column `label` is of another kind, with the same two words in it."""
    rows = [
        {"name": f"pet_{n}", "breed": "ab"[n % 2], "label": "ba"[n % 2], "split": "val" if n >= 16 else "train"}
        for n in range(24)
    ]
    both = write(tmp_path / "both.csv", rows)
    run = tmp_path / "run"
    named = "image=name,label=breed"
    saccade.train(both, columns=named, epochs=1, out=run, settings=TINY | {"data.img_size": 32}, quiet=True)

    def measured(**options):
        found = saccade.evaluate(run, quiet=True, **options)
        return next(iter(found.runs.values())).metrics["top1"].value

    assert measured() == measured(data=both) == 1 - measured(data=both, columns="image=name,label=label")
    other = write(tmp_path / "other.csv", [{"path": f"images/pet_{n}.jpg", "label": "ab"[n % 2]} for n in range(24)])
    with pytest.raises(
        ValueError, match=r"trained with label=breed; give the corresponding column with --columns label=NAME"
    ):
        saccade.evaluate(run, data=other, quiet=True)
    assert 0 <= measured(data=other, columns="image=path,label=label") <= 1


def test_only_the_columns_of_targets_must_be_named_again(tmp_path):
    trained = {"image": "name", "labels": "x|y"}
    columns = {"file": "a.jpg", "x": 0, "y": 1}
    assert columns_as_trained(write(tmp_path / "list.csv", [columns]), trained) == {"labels": "x|y"}
    assert columns_as_trained(str(tmp_path), trained) == {}
    with pytest.raises(ValueError, match=r"labels=x\|y"):
        columns_as_trained(write(tmp_path / "less.csv", [{"file": "a.jpg", "x": 0}]), trained)


@pytest.mark.slow
def test_verbs_take_them_and_a_run_keeps_them(breeds, tmp_path, capsys):
    run, named = tmp_path / "run", "image=name,label=breed"
    settings = TINY | {"data.img_size": 32}
    saccade.train(breeds, columns=named, epochs=1, out=run, settings=settings, quiet=True)
    assert main(["evaluate", str(run), "--quiet", "--out", str(tmp_path / "own")]) == 0
    words = ["evaluate", str(run), "--data", breeds, "--columns", named, "--quiet", "--out", str(tmp_path / "given")]
    assert main(words) == 0
    assert main(["data", "check", breeds, "--columns", named]) in (0, 1)
    assert "16 train + 8 val images, 2 classes" in " ".join(capsys.readouterr().out.split())
    plan = ["compare", breeds, "--columns", named, "--arm", "base", "--arm", "lr=0.001", "--plan", "--epochs", "1"]
    assert main([*plan, "--seeds", "2", "--model", "resnet18", "--img-size", "32", "--device", "cpu"]) == 0


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_cells_may_be_parted_as_spreadsheets_do_it(tmp_path, mark):
    lines = ["path", "label", "note"], *([f"{number}.jpg", "ab"[number % 2], "x, y; z"[:3]] for number in range(8))
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(encoded(number))
    rows = ([f'"{cell}"' if mark in cell else cell for cell in line] for line in lines)
    text = "".join(f"{mark.join(row)}\n" for row in rows)
    (tmp_path / "list.csv").write_text(text)
    data = open_data(str(tmp_path / "list.csv"))
    assert data.classes == ("a", "b")
    assert len(data.train) + len(data.val) == 8


def test_where_a_lists_paths_begin_is_a_folder_with_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "list.csv", [{"path": f"{number}.jpg", "label": number % 2} for number in range(8)])
    with pytest.raises(FileNotFoundError, match=f"paths are relative to {tmp_path}. Move"):
        open_data("list.csv")


def test_an_absolute_path_is_told_as_it_was_given(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    names = []
    for number in range(8):
        names.append(str(tmp_path / "far" / f"{number}.jpg"))
        (tmp_path / "far" / f"{number}.jpg").write_bytes(encoded(number) if number != 3 else b"none")
    rows = [{"path": name, "label": number % 2} for number, name in enumerate(names)]
    data = open_data(write(tmp_path / "near" / "list.csv", rows))
    told = {source.name(index) for source in (data.train, data.val) for index in range(len(source))}
    assert told == set(names)
    assert {str(data.train.raw(index)) for index in range(len(data.train))} <= set(names)
