"""A folder with faults, walked through as a newcomer does, each command timed; and verbs whose reader has seen enough.

SACCADE_WALK_DATA names a folder of class folders, such as the pets'; without it photographs are made of the embedded
set. Run with `-s` to see the tables of times; SACCADE_WALK_TABLE names a file that their rows are added to. What the
documents say to type is run by test_docs_run.py.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saccade.cli import main
from saccade.data.open import open_data
from support.training import TINY_MODEL

pytestmark = pytest.mark.slow


def photographs(folder):
    """Write class folders of small photographs: those that were given, or made of the embedded set."""
    given = os.environ.get("SACCADE_WALK_DATA")
    if given:
        data = open_data(given)
        for split, source in (("train", data.train), ("val", data.val)):
            seen = dict.fromkeys(range(4), 0)
            for index, label in enumerate(source.labels):
                if int(label) in seen and seen[int(label)] < 12:
                    seen[int(label)] += 1
                    to = folder / split / f"class_{int(label)}" / f"{index}{Path(source.name(index)).suffix}"
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source.raw(index), to)
        return folder
    data = open_data()
    for index in range(96):
        label = data.classes[data.train.labels[index]].replace("/", "-")
        to = folder / ("val" if index >= 64 else "train") / label / f"{index}.jpg"
        to.parent.mkdir(parents=True, exist_ok=True)
        grey = np.repeat(data.train.read(index), 3, axis=2)
        Image.fromarray(grey).resize((96, 80)).save(to)
    both = {path.name for path in (folder / "train").iterdir()} & {path.name for path in (folder / "val").iterdir()}
    for place in (*(folder / "train").iterdir(), *(folder / "val").iterdir()):
        if place.name not in both:
            shutil.rmtree(place)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder to walk in, with photographs."""
    home = tmp_path_factory.mktemp("walk")
    set_ = photographs(home / "IMAGES")
    images = sorted((set_ / "val").rglob("*.*"))
    (home / "PHOTOS").mkdir()
    for image in images[:3]:
        shutil.copy(image, home / "PHOTOS" / f"{image.stem}.jpg")
    shutil.copy(images[0], home / "cat.jpg")
    return home


SMALL = ["--set", "data.train_limit=32", "--set", "optim.batch_size=16", "--device", "cpu"]
OPTIONS = f"model.options={TINY_MODEL}".replace("'", "")


def cpu_seconds():
    """Return what this process and those that it began and saw end have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def show(times, capsys):
    """Print what each command took, and add it to the table."""
    head = ["| document | command | wall s | CPU s | status |", "| --- | --- | --: | --: | --: |"]
    rows = [f"| {doc} | `{line[:90]}` | {wall:.1f} | {cpu:.1f} | {status} |" for doc, line, wall, cpu, status in times]
    with capsys.disabled():
        print("", *head, *rows, sep="\n")
    if os.environ.get("SACCADE_WALK_TABLE"):
        file = Path(os.environ["SACCADE_WALK_TABLE"])
        with file.open("a") as table:
            table.writelines(f"{line}\n" for line in ([] if file.stat().st_size else head) + rows)


def test_a_folder_with_faults_is_walked_through_and_every_fault_is_told(place, tmp_path, monkeypatch, capsys):
    set_ = tmp_path / "faults"
    shutil.copytree(place / "IMAGES", set_)
    first, second = sorted((set_ / "train").iterdir())[:2]
    (set_ / "train" / "an_empty_class").mkdir()
    (first / "cut.jpg").write_bytes(next(first.glob("*.jpg")).read_bytes()[:400])
    bad = 1 + len(list((set_ / "train").rglob("*.*"))) // 12  # more than the limit of a twentieth
    for number in range(bad):
        (first / f"text{number}.jpg").write_text("no image")
    (first / "notes.txt").write_text("no image by name")
    shutil.copy(next(first.glob("[0-9]*.jpg")), second / "of_another_class.jpg")
    monkeypatch.chdir(tmp_path)
    times = []

    def walk(*words):
        begun, cpu = time.monotonic(), cpu_seconds()
        status = main(list(words))
        told = capsys.readouterr()
        times.append(("faults", " ".join(words), time.monotonic() - begun, cpu_seconds() - cpu, status))
        assert "Traceback" not in told.err
        return status, " ".join((told.out + told.err).split())

    status, told = walk("data", "check", "faults")
    assert status == 1
    for fault in ("an_empty_class", "cut.jpg", "text0.jpg", "of_another_class.jpg", ".txt 1", "serious problems found"):
        assert fault in told
    status, told = walk("data", "check", "faults", "--fix", "clean")
    assert status == 0
    assert walk("data", "check", "clean")[0] == 0
    train = ("--epochs", "1", *SMALL[2:], "--img-size", "32", "--set", OPTIONS)
    status, told = walk("train", "faults", "--out", "strict", *train)
    assert status == 2
    assert "saccade data check" in told
    status, told = walk("train", "faults", "--out", "lenient", "--set", "data.bad_limit=0.2", *train)
    assert status == 0
    assert "an_empty_class" in told
    assert "cut.jpg" in told
    assert walk("train", "clean", "--out", "run", *train)[0] == 0
    assert walk("evaluate", "run", "--data", "faults", "--limit", "8", "--quiet")[0] == 0
    status, told = walk("predict", "run", "faults", "--out", "answers.csv")
    assert status == 0
    assert f"{bad + 1} unreadable" in told
    assert walk("explain", "run", "faults/train", "--views", "gradcam")[0] == 0
    for mistake, answer in (
        (("trian", "faults"), "did you mean 'train'?"),
        (("train", "faluts"), "'faluts' does not exist"),
        (("train", "clean", "--model", "vit_tinny"), "vit_tiny"),
        (("evaluate", "clean"), "it is not a run"),
        (("predict", "run", "nothing.jpg"), "nothing.jpg"),
    ):
        begun = time.monotonic()
        try:
            status = main(list(mistake))
        except SystemExit as stop_:
            status = stop_.code
        told = capsys.readouterr()
        times.append(("mistakes", " ".join(mistake), time.monotonic() - begun, 0.0, status))
        assert status in (1, 2)
        assert answer in " ".join((told.out + told.err).split())
    show(times, capsys)


@pytest.mark.parametrize(
    "line",
    [
        "models",
        "data check IMAGES",
        "evaluate PIPED --limit 8 --quiet",
        "predict PIPED PHOTOS --quiet",
        "explain PIPED cat.jpg --views gradcam",
        "export PIPED --limit 8",
        "compare IMAGES --arm base --arm lr=0.001 --seeds 2 --epochs 1 --model resnet18 --img-size 32 --plan",
        "benchmark --model resnet18 --peer resnet18 --batch-size 2 --img-size 32",
        "serve PIPED --port 0",
        "train --print-config",
    ],
)
def test_a_reader_that_has_seen_enough_ends_every_verb_without_a_word(line, place):
    if not (place / "PIPED" / "model.safetensors").exists() and "PIPED" in line:
        words = ["train", str(place / "IMAGES"), *SMALL, "--img-size", "32", "--quiet", "--set", OPTIONS]
        assert main([*words, "--epochs", "1", "--out", str(place / "PIPED")]) == 0
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "saccade.cli", *line.split()]
    done = subprocess.run(command, cwd=place, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=500)
    os.close(writing)
    assert done.returncode in (1, 128 + signal.SIGPIPE)
    assert "Broken pipe" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
