import json
import shlex

import pytest
import yaml
from filelock import FileLock

import saccade
from saccade.cli import main
from saccade.comparison.plan.tuned import _settings
from saccade.runs.run import RunError
from saccade.settings import ConfigError, TrainConfig, flatten, overlay, parse_settings
from saccade.settings.decisions import decide
from saccade.settings.facts import Facts, MachineFacts
from saccade.settings.fitting import FOUND
from saccade.support.durations import BudgetError
from saccade.tasks.metric import MetricSpec
from saccade.tasks.opening import open_samples
from saccade.training.pace import Pace
from saccade.training.parallel import local_device
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.trial import Trial, prepare_ground
from saccade.tuning import search, store, tune
from saccade.tuning.halving import Rung
from saccade.tuning.result import Tuned, recipe_text, training_command
from saccade.tuning.search import Attempt, TuningTarget
from support.training import TINY
from support.trainings import png_folder

RUNGS = [Rung(3, 1), Rung(2, 2)]


@pytest.fixture
def planned(monkeypatch):
    """Rounds that do not depend on how fast this machine is."""
    monkeypatch.setattr(tune, "measure_pace", lambda *_: Pace(0.0, 0.0, 0.0, 1))
    monkeypatch.setattr(search, "plan_rungs", lambda *_, **__: RUNGS)


def run_tune(out, **more):
    given = {"budget": "1h", "epochs": 2, "settings": TINY, "quiet": True}
    return saccade.tune(out=out, **given | more)


def test_a_search_ends_with_a_recipe_that_trains_and_a_page(planned, tmp_path):
    found = run_tune(tmp_path / "tune")
    assert found.trials == 5
    settings = yaml.safe_load(found.recipe.read_text())
    assert settings["optim"]["lr"] == found.settings["optim.lr"]
    assert settings["optim"]["batch_size"] == 16
    page = (tmp_path / "tune" / "report.html").read_text()
    assert "against learning rate" in page
    assert "validation samples were not used" in " ".join(page.split())
    trained = saccade.train(
        recipe=str(found.recipe), out=tmp_path / "run", quiet=True, settings={"data.train_limit": 64}
    )
    config = yaml.safe_load((trained.path / "config.yaml").read_text())
    assert config["optim"]["lr"] == found.settings["optim.lr"]
    assert config["schedule"]["epochs"] == 2


def test_trials_are_judged_on_training_samples_alone():
    config = configure("small", TINY | {"data.train_limit": None})
    choice, data = open_samples(None, config.data)
    _, ground = prepare_ground(config, choice, data, local_device("cpu"))
    names = [{source.name(index) for index in range(len(source))} for source in (ground.data.train, ground.data.val)]
    everything = {data.train.name(index) for index in range(len(data.train))}
    assert not names[0] & names[1]
    assert names[0] | names[1] == everything
    assert not everything & {data.val.name(index) for index in range(len(data.val))}


def test_a_search_that_was_killed_goes_on_without_loss(planned, tmp_path, monkeypatch):
    whole = run_tune(tmp_path / "whole")
    count, run_trial = [], store.run_trial

    def dying(*args, **kwargs):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return run_trial(*args, **kwargs)

    monkeypatch.setattr(store, "run_trial", dying)
    with pytest.raises(KeyboardInterrupt):
        run_tune(tmp_path / "killed")
    with open(tmp_path / "killed" / "trials.jsonl", "a") as file:
        file.write('{"key": "torn')  # by a kill in the middle of a line
    again = run_tune(tmp_path / "killed")
    assert len(count) == 3 + 3  # two had ended, one was not begun
    assert (again.settings, again.score) == (whole.settings, whole.score)
    assert not list((tmp_path / "killed" / "trials").iterdir())


def test_another_search_in_the_folder_is_refused_unless_it_may_be_replaced(planned, tmp_path):
    run_tune(tmp_path / "tune")
    with pytest.raises(RunError, match=r"holds a different search: settings.*--overwrite"):
        run_tune(tmp_path / "tune", epochs=3)
    assert run_tune(tmp_path / "tune", epochs=3, overwrite=True).trials == 5
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match=r"no tune\.json"):
        run_tune(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_what_the_user_gives_is_not_sought(planned, tmp_path):
    found = run_tune(tmp_path / "tune", lr=1e-3)
    assert "optim.lr" not in found.settings
    assert yaml.safe_load(found.recipe.read_text())["optim"]["lr"] == 1e-3
    with pytest.raises(ConfigError, match="nothing is left to search"):
        run_tune(tmp_path / "none", recipe="quick", lr=1e-3, settings=TINY | {"optim.weight_decay": 0.1})


def test_a_rate_that_diverges_is_a_failed_trial_and_no_best(planned, tmp_path):
    (tmp_path / "wild.yaml").write_text("optim: {lr: 1.0e-3}\ngrid: {lr: [1.0e-3, 1.0e+30]}\n")
    found = run_tune(tmp_path / "tune", recipe=str(tmp_path / "wild.yaml"))
    assert found.settings["optim.lr"] == 1e-3
    lines = [json.loads(line) for line in (tmp_path / "tune" / "trials.jsonl").read_text().splitlines()]
    assert any(line["score"] is None and "finite" in line["failed"] for line in lines)


def test_a_time_too_short_for_anything_is_refused_with_what_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "measure_pace", lambda *_: Pace(100.0, 100.0, 0.0, 10))
    with pytest.raises(BudgetError, match="two candidates for one epoch take about"):
        run_tune(tmp_path / "tune", budget="60s")


def test_the_best_at_the_end_of_what_was_tried_is_said(planned, tmp_path, capfd):
    (tmp_path / "two.yaml").write_text("optim: {lr: 1.0e-3}\ngrid: {lr: [1.0e-9, 1.0e-3]}\n")
    found = run_tune(tmp_path / "tune", recipe=str(tmp_path / "two.yaml"), quiet=False)
    assert set(found.edges.values()) <= {"lowest", "highest"}
    assert found.edges
    assert "a better value may lie beyond" in " ".join(capfd.readouterr().err.split())


def test_a_mistyped_time_is_answered_in_a_line(capsys, tmp_path):
    assert main(["tune", "--budget", "soon", "--out", str(tmp_path / "tune")]) == 2
    assert "write it as 90s" in " ".join(capsys.readouterr().err.split())


def test_two_searches_do_not_share_a_folder_at_once(planned, tmp_path):
    (tmp_path / "tune").mkdir()
    with FileLock(tmp_path / "tune" / ".lock"), pytest.raises(RunError, match="in use by another process"):
        run_tune(tmp_path / "tune")


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("glnet_nano", {}),
        ("glnet_nano", {"data.img_size": 64, "data.train_limit": 90, "engine.precision": "bfloat16"}),
        ("vit_tiny_patch16_224", {}),  # whose patches are made for the images
        ("swin_tiny_patch4_window7_224", {"model.options": {"depths": [1, 1, 1, 1]}}),
        ("resmlp_12_224", {"data.train_limit": 90}),  # whose rate is another for few images
    ],
)
def test_the_command_that_a_search_prints_trains_what_it_tried(model, given, tmp_path):
    given = {"model.name": model, "engine.device": "cpu", **given}
    config, device = configure("small", given), local_device("cpu")
    choice, data = open_samples(None, config.data)
    tried, ground = prepare_ground(config, choice, data, device)
    best = Attempt(model, 0, {"optim.lr": 1e-4}, 0, 1, Trial(0.5))
    folder = {"path": tmp_path, "recipe": tmp_path / "tuned.yaml", "trials": 1, "seconds": 1.0, "edges": {}}
    found = Tuned(settings=best.values, score=0.5, own_score=None, metric="top1", **folder)
    found.recipe.write_text(recipe_text(given, config, tried, found, best, ground.metric))
    *command, recipe = shlex.split(training_command(given, found.recipe))[:4]
    assert command == ["saccade", "train", "--recipe"]
    more = shlex.split(training_command(given, found.recipe))[4:]
    assert set(more[::2]) == {"--set"}
    trained, _ = resolve(configure(recipe, parse_settings(more[1::2])), choice, data, device)
    leaves, wanted = flatten(trained), flatten(tried) | best.values
    # trials use a part of the samples, which may fit into memory where all do not
    wanted |= {"data.train_limit": given.get("data.train_limit"), "data.resident": "always"}
    assert {name: value for name, value in leaves.items() if value != wanted[name]} == {"recipe": str(found.recipe)}


def test_a_recipe_tuned_over_heads_trains_with_the_best_one_on_a_cpu(tmp_path):
    config, head = configure(None, {"task": "segment"}), "upernet:width=32,aux=0"
    best = Attempt("base", 0, {"model.head": head}, 0, 1, Trial(0.5))
    folder = {"path": tmp_path, "recipe": tmp_path / "tuned.yaml", "trials": 1, "seconds": 1.0, "edges": {}}
    found = Tuned(settings=best.values, score=0.5, own_score=None, metric="miou", **folder)
    found.recipe.write_text(recipe_text({}, config, config, found, best, MetricSpec("miou", "mean IoU")))
    facts = Facts(machine=MachineFacts(gpu=False, cores=2))
    assert decide(configure(str(found.recipe), {}), facts, FOUND).model.head == head


@pytest.mark.parametrize(("values", "rate"), [({"optim.weight_decay": 0.1}, None), ({"optim.lr": 0.01}, 0.01)])
def test_a_tuned_arm_keeps_the_batches_and_the_rate_of_its_trials(values, rate):
    """A grid may seek other things than the rate, which small sets lower together with the batch."""
    config = configure("small", {"data.train_limit": 90, "engine.device": "cpu"})
    choice, data = open_samples(None, config.data)
    tried, ground = prepare_ground(config, choice, data, local_device("cpu"))
    assert tried.optim.lr < config.optim.lr
    arm = overlay(config, _settings(TuningTarget("base", tried, ground), values))
    trained, _ = resolve(arm, choice, data, local_device("cpu"))
    assert trained.optim.lr == (rate or tried.optim.lr)
    assert trained.optim.batch_size == tried.optim.batch_size


def test_trials_cut_the_warm_up_by_their_own_epochs():
    config = configure("quick", {"schedule.epochs": 10, "schedule.warmup": 5, "engine.device": "cpu"})
    tried, _ = prepare_ground(config, *open_samples(None, config.data), local_device("cpu"))
    assert tried.schedule.warmup == 5  # so that finished trials of earlier versions are found


def test_trials_of_other_samples_are_not_taken_for_those_of_these(planned, tmp_path):
    data = png_folder(tmp_path / "images", train=40, val=4)
    first = run_tune(tmp_path / "tune", data=str(data))
    changed = sorted((data / "train").rglob("*.png"))[0]
    other = next(folder for folder in (data / "train").iterdir() if folder != changed.parent) / "moved.png"
    changed.rename(other)  # a label that was corrected
    with pytest.raises(RunError, match="the training samples changed since the search"):
        run_tune(tmp_path / "tune", data=str(data))
    other.rename(changed)
    assert run_tune(tmp_path / "tune", data=str(data)).settings == first.settings


def test_trials_with_another_teacher_are_not_taken_for_those_with_this_one(planned, tmp_path):
    teachers = [
        saccade.train(out=tmp_path / f"teacher{seed}", epochs=1, seed=seed, settings=TINY, quiet=True).path
        for seed in (0, 1)
    ]
    teacher = tmp_path / "teacher"
    teacher.symlink_to(teachers[0])
    run_tune(tmp_path / "tune", plugins=[f"distill:teacher={teacher}"])
    teacher.unlink()
    teacher.symlink_to(teachers[1])
    with pytest.raises(RunError, match="the teacher changed since the search"):
        run_tune(tmp_path / "tune", plugins=[f"distill:teacher={teacher}"])


def test_finished_trials_of_earlier_versions_are_found():
    before = "c3d10a33565f"  # the key of these settings when there were fewer of them
    assert store.key_of(TrainConfig()) == before
    assert store.key_of(overlay(TrainConfig(), {"schedule.warmup_share": 0.1})) != before
