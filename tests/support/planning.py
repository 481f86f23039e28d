"""Helpers that several files of the tests of plan use."""

from saccade.comparison.compare import plan_comparison
from saccade.tasks import MetricSpec
from saccade.training.pace import Pace
from support.comparisons import SETTINGS

ACCURACY = MetricSpec("top1", "accuracy", share=True)
PACE = Pace(startup=10.0, step=1.0, validation=5.0, steps=3, how="told by the test")


def plan(*arms, out, **options):
    options = {"seeds": 3, "epochs": 2, "settings": SETTINGS, "device": "cpu", **options}
    return plan_comparison(arms=["base", *arms], out=out, **options)
