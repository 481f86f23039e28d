"""Which task a list is for, and what of a recipe a task does not take."""

import pytest

from saccade.data.table import Table
from saccade.settings import AugmentConfig, LossConfig, TrainConfig
from saccade.tasks import TASKS, Classify, Reader, Regress, Task
from saccade.tasks.opening import read_by_layout


class BrightReader(Reader):
    """Knows one column of numbers by its name."""

    def claims(self, table):
        return table.find(["bright"]) is not None

    def read_table(self, table):
        return "bright"


class Bright(Task):
    reader = BrightReader


@pytest.fixture
def bright(monkeypatch):
    found = {**{name: TASKS[name] for name in TASKS}, "bright": Bright}
    monkeypatch.setattr(TASKS, "_found", found)
    return Bright


def test_a_task_that_knows_its_column_comes_before_the_one_for_any_numbers(bright, tmp_path):
    table = Table(tmp_path / "a.csv", {"path": ["a", "b"], "bright": ["0.1", "0.7"]}, [True, True])
    assert Regress.reader_for().claims(table)
    assert read_by_layout(table) == "bright"


def test_mixing_is_left_out_with_a_remark_where_a_task_mixes_no_targets(bright):
    config = TrainConfig(augment=AugmentConfig(mixup=0.8, cutmix=1.0), loss=LossConfig(smoothing=0.1))
    bright.name = "bright"
    adapted, remarks = bright.adapt(config)
    assert (adapted.augment.mixup, adapted.augment.cutmix, adapted.loss.smoothing) == (0, 0, 0)
    assert remarks == ["mixup, cutmix, smoothing: turned off, because bright does not mix targets"]
    assert Classify.adapt(config) == (config, [])
