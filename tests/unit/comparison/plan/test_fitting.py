"""A budget resolves a comparison by the rules of a run: model, image size, seeds and epochs."""

import json

import numpy as np
import pytest
import yaml
from PIL import Image

from saccade.comparison.compare import plan_comparison
from saccade.comparison.plan import planning, timing
from saccade.comparison.plan.planning import Planner
from saccade.comparison.plan.request import Request
from saccade.comparison.run.processes import Crew, Slot
from saccade.settings import ConfigError
from saccade.support.durations import BudgetError
from saccade.support.spawning import VISIBLE
from saccade.training.pace import Pace

ARMS = ["base", "broadcast", "drloc"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "photographs"
    draws = np.random.default_rng(0)
    for number in range(60):
        file = path / "ab"[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (160, 160, 3), np.uint8)).save(file)
    return path


@pytest.fixture(autouse=True)
def timed(monkeypatch):
    """An epoch takes 8 s as asked, 2 s with the smaller model, and less with fewer pixels; list what was timed."""
    found = []

    def pace(config, *_):
        size = config.data.img_size or 96
        found.append((bool(config.model.options), size))
        return Pace(
            1.0, (2.0 if config.model.options else 8.0) * (size / 96) ** 2, 0.1, steps=1, how="told by the test"
        )

    monkeypatch.setattr(timing, "time_probe", pace)
    monkeypatch.setattr(Planner, "spent", lambda _: 10.0)
    return found


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU that runs can go to."""
    monkeypatch.setattr(planning, "make_slots", lambda *_, **__: [Slot({VISIBLE: "0"})])
    monkeypatch.setattr(Crew, "call", lambda _: None)
    monkeypatch.setattr(timing.Timing, "begin", lambda *_: None)


def plan(data, budget, *, arms=ARMS, **options):
    return plan_comparison(str(data), arms=arms, budget=budget, device="cpu", out="unused", **options)


@pytest.mark.parametrize(
    ("budget", "small", "pixels", "seeds", "epochs"),
    [
        ("2m", True, 32, 3, 29),
        ("5m", True, 32, 5, 48),
        ("12m", True, 64, 5, 40),
        ("30m", True, 96, 5, 48),
        ("80m", False, 96, 5, 34),
        ("8h", False, 96, 10, 100),
    ],
)
def test_the_largest_model_and_images_with_which_five_seeds_get_thirty_epochs_are_chosen(
    photographs, timed, budget, small, pixels, seeds, epochs
):
    found = plan(photographs, budget)
    assert (len(found.seeds), {arm.epochs for arm in found.arms}) == (seeds, {epochs})
    assert timed[-1] == (small, pixels)
    assert f"input resolution {pixels}, {epochs} epochs of" in str(found)


def test_the_plan_says_what_will_be_found_so_and_with_more_time(photographs):
    told = str(plan(photographs, "1m"))
    assert "Arms will probably look under-trained: 11 epochs, fewer than 30; 3 seeds of 30 " in told
    assert "30 min would be enough for the smaller glnet_nano of the recipe quick, 5 seeds of 48 epochs" in told
    assert (
        "8.0 h would be enough for the requested model and image size, 10 seeds of 100 epochs, differences of about"
        in told
    )
    assert "under-trained" not in str(plan(photographs, "30m"))


def test_what_is_named_is_kept(photographs, timed):
    plan(photographs, "12m", img_size=96)
    assert set(timed) == {(False, 96)}
    timed.clear()
    plan(photographs, "12m", arms=[*ARMS, "large:=img_size=128"])
    assert set(timed) == {(False, 96), (False, 128)}
    timed.clear()
    found = plan(photographs, "12m", arms=[*ARMS, "lr=0.001"], seeds=7)
    assert (len(found.seeds), timed[-1]) == (7, (True, 32))
    with pytest.raises(
        BudgetError, match=r"even 40 seeds of 3 arms for 1 epoch take about .* for 30 epochs\), or use fewer"
    ):
        plan(photographs, "2m", seeds=40)


def test_what_was_chosen_stays_when_the_comparison_is_resumed(photographs, timed, tmp_path):
    def jobs():
        asked = Request(data=str(photographs), arms=ARMS, budget="2m", device="cpu", out=tmp_path / "c")
        ready = Planner(asked).plan(keep=True)
        return [job.path for job in ready.jobs], {job.config.data.img_size for job in ready.jobs}, ready.plan.outlook

    first = jobs()
    assert first[1] == {32}
    record = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert (record["request"]["seeds"], record["fit"]["seeds"], record["fit"]["size"]["img_size"]) == (None, 3, 32)
    timed.clear()
    assert jobs() == first
    assert set(timed) == {(True, 32)}


@pytest.mark.parametrize(
    ("budget", "small", "pixels"), [("5m", True, 32), ("12m", True, 64), ("80m", False, 96), ("8h", False, 96)]
)
def test_a_gpu_is_fitted_by_the_same_rule_as_a_cpu(photographs, timed, gpu, budget, small, pixels):
    found = plan_comparison(str(photographs), arms=ARMS, budget=budget, out="unused")
    assert timed[-1] == (small, pixels)
    assert f"input resolution {pixels}, " in str(found)
    assert "without compilation: compiled steps take about" in str(found)  # which is how its speed is known


def test_time_to_compile_on_a_gpu_counts_when_the_size_is_chosen(photographs, timed, gpu, monkeypatch):
    for seconds, pixels in ((0.0, 96), (10.0, 64)):
        monkeypatch.setattr(timing, "FIRST_COMPILED", seconds)
        monkeypatch.setattr(timing, "KIND_COMPILED", seconds)
        plan_comparison(str(photographs), arms=ARMS, budget="12m", out="unused")
        assert timed[-1] == (True, pixels)


def test_a_smaller_model_that_is_no_faster_is_not_taken(photographs, gpu, monkeypatch):
    launches = lambda config, *_: Pace(1.0, 8.0 + bool(config.model.options), 0.1, steps=1, how="by launches")  # noqa: E731
    monkeypatch.setattr(timing, "time_probe", launches)
    found = str(plan_comparison(str(photographs), arms=ARMS, budget="12m", out="unused"))
    assert "input resolution 96, " in found
    assert "383,372 parameters" not in found


def test_arms_of_equal_settings_whose_recipes_have_other_families_are_refused(photographs, tmp_path):
    values = {"model": {"name": "vit_tiny_patch16_224"}, "optim": {"lr": 1e-3, "least_steps": 10}}
    for name, families in (("one", {"families": "small"}), ("other", {})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**values, **families}))
    given = dict.fromkeys(("optim.weight_decay", "optim.clip", "schedule.warmup"), 1.0)
    arms = [f"{name}:=recipe={tmp_path / name}.yaml+lr=1e-3" for name in ("one", "other")]
    with pytest.raises(ConfigError, match=r"have the same settings, but their recipes .* name other `families`"):
        plan(photographs, None, arms=arms, settings=given, seeds=2)
