"""A process of `saccade train` that gets a real Ctrl-C: what it leaves serves every verb and is called unfinished."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request

import httpx
import pytest
from PIL import Image

from saccade.cli import main
from support.images import pixels
from support.training import TINY

pytestmark = pytest.mark.slow

EPOCHS = 400
SETTINGS = [word for name, value in TINY.items() for word in ("--set", f"{name}={json.dumps(value)}")]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a stopped run and an image."""
    home = tmp_path_factory.mktemp("stopped")
    Image.fromarray(pixels(3)).save(home / "image.png")
    command = [sys.executable, "-m", "saccade.cli", "train", "--epochs", str(EPOCHS), "--out", "run", *SETTINGS]
    process = subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 300
    while time.monotonic() < until and not (home / "run" / "best.safetensors").exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "saccade train --resume run" in told
    assert "evaluate the weights so far: saccade evaluate run" in told
    assert "Traceback" not in told
    return home


def test_best_and_last_weights_are_kept_and_the_run_is_not_called_finished(home):
    assert (home / "run" / "last.safetensors").exists()
    assert (home / "run" / "best.safetensors").exists()
    assert not (home / "run" / "model.safetensors").exists()
    assert 1 <= len((home / "run" / "metrics.jsonl").read_text().splitlines()) < EPOCHS


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "run", "--limit", "20", "--quiet"],
        ["predict", "run", "image.png", "--out", "answers.csv"],
        ["explain", "run", "image.png", "--views", "gradcam"],
        ["export", "run", "--limit", "8"],
        ["train", "--checkpoint", "run", "--epochs", "1", "--out", "flag", *SETTINGS],
        ["train", "--set", "model.checkpoint=run", "--epochs", "1", "--out", "setting", *SETTINGS],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_every_verb_takes_it(words, home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    assert main(words) == 0
    assert re.search(rf"are unfinished.*after \d+ of {EPOCHS} epochs", " ".join(capsys.readouterr().err.split()))


def test_it_is_served_under_a_name_that_says_so(home):
    command = [sys.executable, "-m", "saccade.cli", "serve", "run", "--port", "0"]
    with subprocess.Popen(command, cwd=home, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as process:
        try:
            told = ""
            for line in process.stdout:
                told += line
                if found := re.search(r"http://127\.0\.0\.1:\d+", told):
                    break
            until = time.monotonic() + 120
            while time.monotonic() < until:
                try:
                    urllib.request.urlopen(f"{found.group(0)}/health").close()
                    break
                except OSError:
                    time.sleep(0.2)
            with (home / "image.png").open("rb") as image:
                answer = httpx.post(f"{found.group(0)}/predict", files={"file": image}, timeout=60)
            assert answer.status_code == 200
            assert answer.json()["model"] == "run (unfinished)"
        finally:
            process.terminate()
            process.wait(60)


def test_it_goes_on_where_it_was_stopped(home):
    before = len((home / "run" / "metrics.jsonl").read_text().splitlines())
    command = [sys.executable, "-m", "saccade.cli", "train", "--resume", "run"]
    process = subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 300
    while time.monotonic() < until and len((home / "run" / "metrics.jsonl").read_text().splitlines()) <= before:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "resuming run at step" in told
    epochs = [json.loads(line)["epoch"] for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, len(epochs) + 1))
