import sys

import pytest

import saccade
from saccade.training.console import Board
from support.training import tiny

pytestmark = pytest.mark.usefixtures("few_answers")


def test_a_missing_tensorboard_is_said_with_the_extra_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"saccade\[log\]"):
        Board(tmp_path)


def test_curves_hold_what_the_metrics_hold(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = tiny(keep__tensorboard=True)
    run = saccade.train(epochs=2, out=tmp_path / "run", quiet=True, settings=settings)
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    points = found.Scalars("val_top1")
    assert [point.step for point in points] == [1, 2]
    assert points[-1].value == pytest.approx(run.metrics["val_top1"])
