import json

import pytest

import saccade
from saccade.cli import main
from saccade.runs.run import Run
from saccade.settings import read_yaml
from saccade.settings.decisions import latest, read_decisions
from saccade.training.train import train
from support.training import TINY, tiny

pytestmark = pytest.mark.usefixtures("few_answers")


def test_a_plan_tells_size_length_time_and_who_decided_and_trains_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "plan",
        "--device",
        "cpu",
        "--model",
        "vit_tiny",
        "--set",
        "data.train_limit=64",
        "--set",
        "model.options={depth: 1}",
    ]
    assert main(words) == 0
    told = capsys.readouterr().out
    for part in (
        "vit_tiny_patch16_224",
        "parameters",
        "epochs",
        "time on this machine (cpu)",
        "MiB",
        "one H200",
        "data.img_size = 28",
        "optim.lr = 0.000125 (recipe: 0.002); set, few-samples: 64 training samples",
        "data.train_limit = 64 (recipe: null); given by you",
    ):
        assert part in told, told
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_what_the_run_resolves_to(tmp_path):
    given = tiny(schedule__epochs=1)
    planned = saccade.plan(settings=given)
    run = Run(train(settings=given, out=tmp_path / "run", quiet=True).path)
    assert run.config() == planned.config
    assert [one.setting for one in read_decisions(run.path)] == [one.setting for one in planned.decisions]
    assert planned.explain("engine.precision").who == "machine"
    assert planned.explain("optim.momentum") is None


def test_unknown_arguments_and_settings_are_refused_as_by_train():
    with pytest.raises(TypeError, match="takes no epoch; it takes data"):
        saccade.plan(epoch=3)
    with pytest.raises(ValueError, match=r"did you mean 'optim\.lr'"):
        saccade.plan(settings={"optim.lrr": 1.0})


def test_a_resumed_run_keeps_what_was_decided_and_says_what_changed(tmp_path):
    run = Run(train(settings=tiny(schedule__epochs=1), out=tmp_path / "run", quiet=True).path)
    before = latest(read_decisions(run.path), run.config())
    train(resume=run.path, quiet=True, settings={"optim.lr": 1e-5})
    after = latest(read_decisions(run.path), run.config())
    assert after.pop("optim.lr").why == "given by you on resuming"
    before.pop("optim.lr", None)
    assert after == before
    assert before["data.img_size"].rule == "size-of-arrays"


def test_print_config_is_resolved(capsys):
    words = [f"--set={name}={json.dumps(value)}" for name, value in TINY.items()]
    assert main(["train", "--print-config", *words]) == 0
    settings = read_yaml(capsys.readouterr().out, source="the output")
    assert (settings["data"]["img_size"], settings["engine"]["precision"], settings["task"]) == (
        28,
        "float32",
        "classify",
    )
    assert main(["train", "--print-config", "--recipe", "detect"]) == 0  # needs data to be resolved, and there is none
    assert read_yaml(capsys.readouterr().out, source="the output")["recipe"] == "detect"
