"""Helpers that several files of the tests of report use."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from saccade.comparison.conclude.findings import ArmResult, ClassDifference, Cost, Disagreement
from saccade.comparison.page.result import Comparison
from saccade.comparison.plan.plan import Note, Plan, PlannedArm
from saccade.comparison.plan.snapshot import Check
from saccade.settings.decisions import Decision
from saccade.statistics import judge, paired_difference, paired_scores, ratio_interval
from saccade.tasks.classification.metrics import metric_specs

EVIL = "<script>alert(1)</script>"
SEEDS = (0, 1, 2)
RANDOM = np.random.default_rng(0)
SHARES = {"base": 0.6, "better": 0.75, EVIL: 0.6}
CORRECT = {name: (RANDOM.random((3, 400)) < share).astype(float) for name, share in SHARES.items()}
REQUEST = {
    "data": "my images",
    "recipe": None,
    "settings": {"schedule.epochs": 2, "model.options": {"dims": [8, 16]}, "optim.name": "adamw", "keep.ema": None},
    "arms": {"base": "base", "better": "lr=0.003"},
    "seeds": [0, 1, 2],
    "budget": None,
}


RATE = Decision("optim.lr", 0.002, 0.001, "family", "family", f"a model {EVIL}")


def made(path=Path("nowhere"), **more):
    """A comparison of four arms, one of which failed."""
    base = CORRECT["base"]
    found = {name: paired_difference(base, CORRECT[name]) for name in ("better", EVIL)}
    failed = {-1: f"cannot be built: {EVIL}. Try another"}
    arms = [ArmResult(n, n, "finished", SEEDS, tuple(c.mean(1)), float(c.mean()), {}, {}) for n, c in CORRECT.items()]
    arms.append(ArmResult("broken", "squeeze", "failed", (), (), None, {}, failed))
    arms.append(replace(arms[1], name="twin", identical_to="better"))
    rows = tuple(
        ClassDifference(
            f"class {i} {EVIL}", 20, float(base[:, m].mean()), float(CORRECT["better"][:, m].mean()), d, 0.5
        )
        for i in range(20)
        for m in [slice(20 * i, 20 * i + 20)]
        for d in [paired_difference(base[:, m], CORRECT["better"][:, m])]
    )
    cost = Cost(
        1234567, 5_000_000, 0.02, ratio_interval([1.0, 1.1, 1.2], [1.5, 1.6, 1.9]), 75.0, 300 * 2**20, 60.0, None
    )
    equal = paired_scores([0.5, 0.52, 0.51], [0.55, 0.58, 0.54], share=True)
    costs = {"base": replace(cost, step_ratio=None), "better": replace(cost, at_equal_time=equal)}
    costs["broken"] = Cost(None, None, None, None, None, None, None, None)
    samples = (Disagreement(0, "test[0]", "cat", 0.0, 1.0), Disagreement(1, "test[1]", EVIL, 2 / 3, 1 / 3))
    checks = (Check("batches", True, "32 samples a step"), Check("optimizer", False, "because optim.lr = 0.003"))
    own = replace(RATE, value=0.003, who="you", rule="you", why="given by you")
    planned = (
        PlannedArm("base", "base", {}, notes=("a note",), decisions=(RATE,)),
        PlannedArm("better", "lr=0.003", {"optim.lr": (0.002, 0.003)}, checks=checks, decisions=(own,)),
        PlannedArm(EVIL, EVIL, {"model.name": ("vit", EVIL)}, checks=(checks[0], replace(checks[1], equal=True))),
        PlannedArm("broken", "squeeze", {}, failed="cannot be built"),
        PlannedArm("twin", "lr=0.003", {"optim.lr": (0.002, 0.003)}, identical_to="better"),
    )
    plan = Plan(f"set {EVIL}", "base", planned, SEEDS, 400, True, 9, 0, 1, None, "", "", 0.02, "")
    result = Comparison(
        path=path,
        plan=plan,
        metric="top1",
        reference="base",
        arms=tuple(arms),
        differences=judge(found),
        other={"val_loss": {"better": paired_scores([1.0, 1.1, 1.2], [0.8, 0.9, 0.95], larger_is_better=False)}},
        classes={"better": rows, EVIL: ()},
        disagreements={"better": samples},
        costs=costs,
        notes=(Note("failure", f"broken failed: {EVIL}", arm="broken"), Note("timing", f"a remark {EVIL}", "look")),
        primary="top1",
        metrics={one.name: one for one in metric_specs(20)},
        binary=("top1", "top5", "macro_top1"),
        class_metric="top1",
        sample_metric="top1",
    )
    return replace(result, **more)


def numbers(text):
    return [float(x.replace("\N{MINUS SIGN}", "-")) for x in re.findall(r"[-\N{MINUS SIGN}]?\d+(?:\.\d+)?", text)]
