"""What all arms have in common is said in the plan; comparisons of an earlier version are resumed or refused."""

import pytest
import torch

from saccade.comparison.compare import plan_comparison
from saccade.comparison.plan import planning
from saccade.comparison.plan.arms import find_twins
from saccade.comparison.plan.common import (
    REFERENCE,
    arm_configs,
    count_in_epochs,
    refuse_earlier,
    refuse_unread,
    say_common,
    taken_off,
)
from saccade.comparison.plan.request import Request
from saccade.comparison.plan.snapshot import DataCache
from saccade.runs.run import RunError
from saccade.settings import ConfigError
from support.comparisons import SETTINGS

CPU = torch.device("cpu")


def request(*arms, **options):
    return Request(arms=["base", *arms], seeds=2, **{"settings": SETTINGS, **options})


def test_the_recipes_plugins_are_taken_off_and_named_in_the_plan(tmp_path, monkeypatch):
    from saccade.comparison.plan import timing
    from saccade.training.pace import Pace

    monkeypatch.setattr(timing, "time_probe", lambda *_: Pace(startup=1.0, step=1.0, validation=1.0, steps=3))
    settings = SETTINGS | {"model.name": "vit_tiny_patch16_224", "data.img_size": 32}
    settings["model.options"] = {"depth": 2, "embed_dim": 32, "num_heads": 2}
    plan = plan_comparison(
        arms=["base", "drloc"], recipe="drloc", settings=settings, seeds=2, epochs=1, device="cpu", out=tmp_path / "c"
    )
    assert dict(plan.arm("drloc").changes) == {"model.plugins": ([], ["drloc"])}
    assert "the plug-ins: none (without the recipe's own, drloc:" in str(plan).splitlines()[1]


def test_what_all_arms_have_is_what_each_of_them_has():
    asked = request("broadcast", "drloc", recipe="token_label", settings=SETTINGS | {"model.plugins": ["squeeze"]})
    assert taken_off(asked) == []
    assert "the plug-ins: squeeze." in say_common(asked)
    plugins = {name: config.model.plugins for name, config in arm_configs(asked).items()}
    assert plugins == {"base": ["squeeze"], "broadcast": ["squeeze", "broadcast"], "drloc": ["squeeze", "drloc"]}


def test_a_length_in_steps_is_one_in_epochs_before_anything_is_fitted():
    asked = request("augment.repeats=3", settings=SETTINGS | {"schedule.steps": 10}, recipe="quick")
    configs = arm_configs(asked)
    count_in_epochs(configs, DataCache(), CPU)
    for name, config in configs.items():
        assert configs.records[name][-1].rule == "epochs-of-steps"
        assert (config.schedule.epochs, config.schedule.steps) == (4, None)  # of 3 steps each


BEFORE = {"request": {"arms": {"base": "base"}}, "samples": {}}


@pytest.mark.parametrize(
    ("arms", "options"),
    [
        (("drloc",), {"recipe": "drloc"}),
        (("lr=0.1",), {"recipe": "detect_1x", "task": "detect"}),
        (("model.head=upernet:aux=8",), {"recipe": "segment"}),
        (("augment.repeats=3",), {"recipe": "segment_cb"}),
        (("model.options={depths: [1, 1]}",), {}),
    ],
)
def test_a_comparison_whose_arms_meant_other_settings_is_refused_in_a_sentence(arms, options):
    asked = request(*arms, **options)
    configs = arm_configs(asked)
    with pytest.raises(RunError, match=r"started by an earlier version, which trained .* with other settings"):
        refuse_earlier(asked, configs, BEFORE)
    refuse_earlier(asked, configs, {**BEFORE, REFERENCE: say_common(asked)})  # begun by this one


@pytest.mark.parametrize("arms", [("broadcast",), ("drloc:weight=0.3", "lr=0.1"), ("recipe=drloc", "model=glnet_stl")])
def test_a_comparison_whose_arms_mean_the_same_is_resumed(arms):
    asked = request(*arms)
    refuse_earlier(asked, arm_configs(asked), BEFORE)
    refuse_earlier(asked, arm_configs(asked), {})


def test_a_length_of_an_arm_takes_the_place_of_another_kind_of_length_for_all():
    asked = request("epochs=3", settings=SETTINGS | {"schedule.steps": 100, "schedule.warmup_steps": 9})
    lengths = {name: (one.schedule.epochs, one.schedule.steps) for name, one in arm_configs(asked).items()}
    assert lengths["epochs=3"] == (3, None)
    assert lengths["base"][1] == 100
    shorter = request("schedule.warmup=2", settings=SETTINGS | {"schedule.warmup_steps": 9})
    schedule = arm_configs(shorter)["schedule.warmup=2"].schedule
    assert (schedule.warmup, schedule.warmup_steps) == (2, None)


def test_two_kinds_of_length_for_all_arms_are_refused():
    asked = request("broadcast", settings=SETTINGS | {"schedule.steps": 100, "schedule.epochs": 3})
    with pytest.raises(ConfigError, match=r"schedule\.epochs"):
        refuse_unread(asked, arm_configs(asked), DataCache(), CPU)


def test_what_was_not_typed_need_not_be_read():
    """Folds of a run are made of all of its settings, of which some have no use then."""
    idle = SETTINGS | {"optim.momentum": 0.5}
    with pytest.raises(ConfigError, match=r"optim\.momentum"):
        refuse_unread(asked := request("broadcast", settings=idle), arm_configs(asked), DataCache(), CPU)
    refuse_unread(asked := request("broadcast", settings=idle, typed=()), arm_configs(asked), DataCache(), CPU)


def check(arms, settings, **options):
    asked = Request(arms=arms, seeds=2, model="glnet_nano", settings=settings)
    refuse_unread(asked, arm_configs(asked), DataCache(), CPU, **options)


ITERATIONS = {"model.options": {"kmeans_iterations": 5}}


def test_an_option_of_all_arms_is_used_by_one_of_them_at_least():
    check(["soft:=model.options.slots=pool", "km:=model.options.clustering=kmeans"], ITERATIONS)
    with pytest.raises(ConfigError, match=r"^model\.options\.kmeans_iterations = 5 was given"):
        check(["soft:=model.options.slots=pool", "base"], ITERATIONS)
    with pytest.raises(ConfigError, match=r"^arm 'soft': model\.options\.kmeans_iterations"):
        check(["soft:=model.options={kmeans_iterations: 3}", "km:=model.options.clustering=kmeans"], {})


def test_an_arm_is_not_blamed_for_a_plugin_of_all_arms():
    idle = {"model.plugins": ["drloc:schedule=constant,ramp_epochs=5"]}
    with pytest.raises(ConfigError, match=r"^the plug-in 'drloc"):
        check(["squeeze", "base"], idle)
    with pytest.raises(ConfigError, match=r"^arm 'x': the plug-in 'drloc"):
        check(["x:=drloc:schedule=constant,ramp_epochs=5", "base"], {})


def test_only_new_arms_are_refused():
    arms = ["base", "old:=model.options.kmeans_iterations=3"]
    with pytest.raises(ConfigError, match="arm 'old'"):
        check([*arms, "new:=lr=0.1"], ITERATIONS)
    check([*arms, "new:=lr=0.1"], ITERATIONS, accepted=["base", "old"])
    with pytest.raises(ConfigError, match="arm 'new'"):
        check([*arms, "new:=model.options.kmeans_iterations=4"], ITERATIONS, accepted=["base", "old"])


def test_a_comparison_of_an_earlier_version_is_extended_by_an_arm(tmp_path, monkeypatch):
    """Its arms have an option without effect, and recipes of other families."""
    for name, families in (("one", "families: small\n"), ("two", "")):
        (tmp_path / f"{name}.yaml").write_text(f"{families}model: {{name: vit_tiny_patch16_224}}\n")
    old = [f"{name}:=recipe={tmp_path}/{name}.yaml+drloc:schedule=constant,ramp_epochs=5" for name in ("one", "two")]
    given = dict.fromkeys(("optim.lr", "optim.weight_decay", "optim.clip", "schedule.warmup"), 1.0)

    def asked(*arms):
        return Request(arms=arms, seeds=2, settings=given, out=tmp_path / "c")

    def stop(*_):
        raise RuntimeError("seen")

    monkeypatch.setattr(planning, "shared_by", stop)  # called after arms were refused
    planner = planning.Planner(asked(*old))
    planner.folder.write(planner.request.record, {REFERENCE: say_common(planner.request)})
    with pytest.raises(RuntimeError, match="seen"):
        planning.Planner(asked(*old)).plan(keep=False)
    with pytest.raises(RuntimeError, match="seen"):
        planning.Planner(asked(*old, "new:=lr=0.1")).plan(keep=False)
    with pytest.raises(ConfigError, match=r"arm 'new'"):
        planning.Planner(asked(*old, "new:=drloc:schedule=constant,ramp_epochs=4")).plan(keep=False)
    plain = [text.partition("+")[0] for text in old]
    with pytest.raises(ConfigError, match=r"have the same settings"):
        find_twins(arm_configs(asked(*plain)), "one", accepted=["one"])
    assert find_twins(arm_configs(asked(*plain)), "one", accepted=["one", "two"])["two"] == "one"


def test_plugins_that_tell_arms_apart_are_not_tuned(tmp_path, monkeypatch):
    """The recipe `text` seeks a head among others; an arm that names one keeps it."""
    seen = {}

    def tune(configs, fixed, *_, **__):
        seen.update(fixed)
        raise ConfigError("seen")

    monkeypatch.setattr(planning, "tune_arms", tune)
    asked = request("squeeze", out=tmp_path / "c", tune="1m")
    with pytest.raises(ConfigError, match="seen"):
        planning.Planner(asked).plan(keep=True)
    assert all("model.plugins" in names for names in seen.values())
