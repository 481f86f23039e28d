"""Numbers of things are told in words that fit them."""

import pytest

from saccade.runs.state import StateError, save_state
from saccade.support.wording import count_are, count_of


def test_one_thing_is_not_many():
    assert [count_of(n, "epoch") for n in (0, 1, 2, 1234)] == ["0 epochs", "1 epoch", "2 epochs", "1,234 epochs"]
    assert [count_are(n, "image") for n in (1, 2)] == ["1 image is", "2 images are"]


def test_a_full_disk_speaks_of_states_only_where_there_are_some(tmp_path, monkeypatch):
    import torch

    from saccade.runs import state

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    tensors = {"a": torch.zeros(2)}
    with monkeypatch.context() as patch:
        patch.setattr(state, "save_file", full)
        with pytest.raises(StateError, match="There is no earlier state to resume from: make room") as first:
            save_state(tmp_path / "state", 0, tensors, {})
        assert "intact" not in str(first.value)
    save_state(tmp_path / "state", 1, tensors, {})
    monkeypatch.setattr(state, "save_file", full)
    with pytest.raises(StateError, match="States written before are intact"):
        save_state(tmp_path / "state", 2, tensors, {})
