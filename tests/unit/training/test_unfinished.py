"""A run that was stopped can be used as it stands: by every verb, and as the start of another; it says so."""

import json

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import saccade
from saccade.cli import main
from saccade.models import CheckpointError
from saccade.runs.run import Run
from saccade.runs.state import load_state
from saccade.training.loop import Interrupted, Loop
from support.images import pixels
from support.training import TINY

pytestmark = pytest.mark.usefixtures("few_answers")

EPOCHS = 3
SETTINGS = TINY | {"keep.ema": 0.9}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with averaged weights that was told to stop in its second epoch, and an image."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    original = Loop._checkpoint_or_stop

    def stop(self):
        if self.step == 6:
            self.stop_signal = 2
        original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_checkpoint_or_stop", stop)
        with pytest.raises(Interrupted):
            saccade.train(epochs=EPOCHS, out=out, settings=SETTINGS, quiet=True)
    Image.fromarray(pixels(3)).save(out.parent / "image.png")
    return out


def test_what_is_kept_are_the_last_weights_and_the_best(stopped):
    assert not (stopped / "model.safetensors").exists()
    last, best = load_file(stopped / "last.safetensors"), load_file(stopped / "best.safetensors")
    assert any(not torch.equal(last[name], best[name]) for name in last)
    tensors = load_state(stopped / "state").tensors
    averages = {name.removeprefix("average."): v for name, v in tensors.items() if name.startswith("average.")}
    assert averages
    assert all(torch.equal(last[name], value) for name, value in averages.items())


def test_the_best_weights_are_written_with_the_state_and_not_in_every_epoch(tmp_path, monkeypatch):
    written = []
    original = Loop._write_weights
    monkeypatch.setattr(
        Loop, "_write_weights", lambda self, path, kept: (written.append(path.name), original(self, path, kept))
    )
    done = saccade.train(epochs=3, out=tmp_path / "run", settings=SETTINGS, quiet=True)
    assert written == ["best.safetensors", "last.safetensors"]
    with safe_open(done.path / "best.safetensors", "pt") as file:
        about = json.loads(file.metadata()["saccade"])["unfinished"]
    scores = [record["val_top1"] for record in Run(done.path).metrics()]
    assert about["epoch"] == 1 + scores.index(max(scores))


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN", "--limit", "20", "--out", "OUT", "--quiet"],
        ["predict", "RUN", "IMAGE", "--quiet"],
        ["explain", "RUN", "IMAGE", "--views", "gradcam", "--out", "OUT"],
        ["train", "--set", "model.checkpoint=RUN", "--epochs", "1", "--out", "OUT", "SETTINGS"],
    ],
)
def test_every_verb_takes_it_and_says_that_it_is_unfinished(words, stopped, tmp_path, capsys):
    settings = [word for name, value in TINY.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    names = {"RUN": str(stopped), "IMAGE": str(stopped.parent / "image.png"), "OUT": str(tmp_path / "out")}
    given = [word.replace("RUN", names["RUN"]) if "=" in word else names.get(word, word) for word in words]
    given = [*given[:-1], *settings] if given[-1] == "SETTINGS" else given
    assert main(given) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "are unfinished" in told
    assert f"after 1 of {EPOCHS} epochs (step 6)" in told


@pytest.mark.slow
def test_what_is_exported_of_it_says_so_wherever_it_is_asked(stopped, tmp_path, capsys):
    from saccade.deployment.predictor import open_predictor

    assert main(["export", str(stopped), "--out", str(tmp_path / "out"), "--limit", "8"]) == 0
    told = capsys.readouterr()
    assert "are unfinished" in " ".join(told.err.split())
    assert "run (unfinished), judged by" in told.out
    assert open_predictor(tmp_path / "out" / "model.onnx").bundle.name == "run (unfinished)"


def test_a_server_calls_it_unfinished(stopped):
    from saccade.deployment.predictor import open_predictor

    with pytest.warns(UserWarning, match="are unfinished"):
        assert open_predictor(stopped).bundle.name == "run (unfinished)"


def test_its_note_is_on_the_page(stopped, tmp_path):
    with pytest.warns(UserWarning, match="are unfinished"):
        found = saccade.evaluate(stopped, limit=20, out=tmp_path / "found", quiet=True)
    assert "are unfinished" in found.to_markdown()
    assert "are unfinished" in found.page.read_text()


def test_a_finished_run_says_nothing_and_keeps_its_best_weights(stopped, tmp_path, recwarn):
    done = saccade.train(resume=stopped, quiet=True)
    assert not (done.path / "last.safetensors").exists()
    saccade.load_model(done.path)
    assert [str(w.message) for w in recwarn if "unfinished" in str(w.message)] == []
    with pytest.warns(UserWarning, match=r"best\.safetensors are unfinished"):
        saccade.load_model(done.path / "best.safetensors")


def test_a_run_without_weights_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(CheckpointError, match="has not saved any weights yet; resume it with"):
        saccade.load_model(tmp_path)
