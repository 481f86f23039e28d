"""`data check --fix` writes a clean copy: what spoils training is left out and named, the source stays as it is."""

import csv
import hashlib
import os
import shutil

import pytest

from saccade.cli import main
from saccade.data.check import check_data
from saccade.data.open import open_data
from support.images import encoded


def snapshot(folder):
    """Everything that could have been touched."""
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_nlink, path.stat().st_ino)
        + ((hashlib.sha256(path.read_bytes()).hexdigest(),) if path.is_file() else ())
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def faulty(tmp_path):
    root = tmp_path / "set"
    for split, count in (("train", 6), ("val", 3)):
        for label in "ab":
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                seed = 100 * (split == "val") + 10 * (label == "b") + number
                (root / split / label / f"{number}.png").write_bytes(encoded(seed, "PNG"))
    (root / "train" / "a" / "cut.jpg").write_bytes(encoded(50)[:200])
    (root / "train" / "a" / "text.jpg").write_text("no image")
    shutil.copy(root / "train" / "a" / "0.png", root / "train" / "a" / "again.png")
    shutil.copy(root / "train" / "b" / "1.png", root / "train" / "a" / "mixed.png")
    shutil.copy(root / "val" / "b" / "2.png", root / "train" / "b" / "leak.png")
    return root


def test_a_clean_copy_lacks_what_spoils_training_and_keeps_the_rest(faulty, tmp_path, capsys):
    before, out = snapshot(faulty), tmp_path / "clean"
    assert main(["data", "check", str(faulty), "--fix", str(out)]) == 0
    assert snapshot(faulty) == before
    kept = {path.relative_to(out).as_posix() for path in out.rglob("*.*g")}
    names = ("a/cut.jpg", "a/text.jpg", "a/again.png", "a/mixed.png", "b/1.png", "b/leak.png")
    gone = {f"train/{name}" for name in names}
    every = {path.relative_to(faulty).as_posix() for path in faulty.rglob("*.*g")}
    assert kept == every - gone
    report = check_data(str(out))
    assert (report.ok, report.findings) == (True, ())
    told = capsys.readouterr().out
    with open(out / "left_out.csv", newline="") as file:
        left = {row["path"]: row["reason"] for row in csv.DictReader(file)}
    assert set(left) == gone
    assert all(f"left out: {name}: {reason}" in told for name, reason in left.items())
    assert left["train/b/leak.png"] == "it is the same image as val/b/2.png in the validation split"
    assert "6 images left out; the dataset itself is not modified" in told


def test_a_clean_copy_of_a_list_is_a_list(faulty, tmp_path):
    rows = [
        {"file": f"{split}/{label}/{name}", "breed": label, "split": split, "note": f"{split}{name}"}
        for split in ("train", "val")
        for label in "ab"
        for name in sorted(os.listdir(faulty / split / label))
    ]
    rows.append({"file": str(faulty / "train" / "a" / "1.png"), "breed": "a", "split": "train", "note": "twice"})
    with open(faulty / "list.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    before, out = snapshot(faulty), tmp_path / "clean"
    words = ["data", "check", str(faulty / "list.csv"), "--columns", "label=breed", "--fix", str(out)]
    assert main(words) == 0
    assert snapshot(faulty) == before
    data = open_data(str(out / "list.csv"))
    assert (len(data.train), len(data.val), data.classes) == (11, 6, ("a", "b"))
    assert check_data(str(out / "list.csv")).ok
    assert main([*words[:-1], str(faulty / "beside_the_list")]) == 0
    assert check_data(str(faulty / "beside_the_list" / "list.csv")).ok


def test_what_is_there_is_never_overwritten_and_other_sets_are_refused(faulty, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    assert main(["data", "check", str(faulty), "--fix", str(tmp_path / "there")]) == 2
    assert main(["data", "check", str(faulty), "--fix", str(faulty / "inside")]) == 2
    assert not (faulty / "inside").exists()
    assert main(["data", "check", "--fix", str(tmp_path / "of_arrays")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "already exists; choose a new directory" in told
    assert "would become part of the dataset" in told
    assert "neither class folders nor a list of files" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "there"]
