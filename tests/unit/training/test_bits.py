"""A change of the code that is not meant to change numbers changes none: ten steps end with the weights on record."""

import json
from pathlib import Path

import pytest

from support.bits import SETTINGS, describe, machine, train_setting

RECORD = Path(__file__).parents[2] / "golden" / "bits.json"


@pytest.mark.parametrize("name", SETTINGS)
def test_ten_steps_end_with_the_weights_on_record(name, tmp_path):
    found = describe(train_setting(name, tmp_path))
    known = json.loads(RECORD.read_text())
    want = known["runs"][name]
    assert found["metrics"][-1]["step"] == 10
    if machine() in known["machines"]:
        assert found["weights"] == want["weights"]
        assert found["metrics"] == want["metrics"]
    # Another processor or library adds in another order; what is computed is the same.
    assert found["sum"] == pytest.approx(want["sum"], rel=1e-4)
    for mine, theirs in zip(found["metrics"], want["metrics"], strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-3)
        assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-3)
