import numpy as np
import pytest

from saccade.evaluation.judge import statistic_of
from saccade.tasks.metric import GROUP, MetricSpec


def test_group_means_over_repeated_images_are_those_of_the_repeated_set():
    random = np.random.default_rng(2)
    columns = {"right": random.integers(0, 2, 40), GROUP: random.integers(0, 3, 40)}
    spec = MetricSpec("macro", "by group", by_group=True, source="right")
    drawn = random.integers(40, size=40)
    weights = np.bincount(drawn, minlength=40)[None].astype(np.float32)
    wanted = spec.combine({name: column[drawn] for name, column in columns.items()})
    assert statistic_of(spec, columns)(weights)[0] == pytest.approx(wanted, rel=1e-6)
