import errno
import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import torch

from saccade.runs import state
from saccade.runs.state import StateError, list_states, load_state, save_state, set_aside
from saccade.training.parallel import Alone


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "weights": torch.full((3, 2), value),
        "half": torch.tensor([value], dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "none": torch.empty(0, 4),
    }


@pytest.fixture
def folder(tmp_path):
    for step in (10, 20):
        save_state(tmp_path, step, tensors(float(step)), {"step": step, "text": "ä"})
    return tmp_path


def step_of(folder: Path) -> int:
    return load_state(folder).record["step"]


def test_state_comes_back_as_it_was_written(folder):
    loaded = load_state(folder)
    assert loaded.record == {"step": 20, "text": "ä"}
    assert loaded.notes == []
    for name, value in tensors(20.0).items():
        assert loaded.tensors[name].dtype == value.dtype
        assert torch.equal(loaded.tensors[name], value)


def test_only_the_newest_states_are_kept_and_in_the_order_of_their_steps(tmp_path):
    for step in (999_999_999, 1_000_000_000, 5, 1_000_000_000):
        save_state(tmp_path, step, tensors(0.0), {"step": step}, keep=3)
    names = [path.name for path in list_states(tmp_path)]
    assert names == ["step-999999999", "step-1000000000", "step-1000000000.1"]


def test_second_state_of_a_step_does_not_touch_the_first_until_it_is_whole(folder, monkeypatch):
    monkeypatch.setattr(state, "_write_record", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save_state(folder, 20, tensors(21.0), {"step": 21})
    assert step_of(folder) == 20
    monkeypatch.undo()
    save_state(folder, 20, tensors(21.0), {"step": 21})
    assert step_of(folder) == 21
    assert not list(folder.glob(".*.part"))


def truncate(newest: Path) -> None:
    shard = newest / "shard-0-of-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-3])


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


DAMAGES = {
    "shard truncated": (truncate, "checksum"),
    "shard emptied": (lambda newest: (newest / "shard-0-of-1.safetensors").write_bytes(b""), "checksum"),
    "shard missing": (lambda newest: (newest / "shard-0-of-1.safetensors").unlink(), "shard-0-of-1"),
    "bit of a weight": (lambda newest: flip(newest / "shard-0-of-1.safetensors", -1), "checksum"),
    "bit of the shard's head": (lambda newest: flip(newest / "shard-0-of-1.safetensors", 12), "checksum"),
    "bit of the record": (lambda newest: flip(newest / "state.json", 160), "state.json|JSON|Unicode"),
    "record truncated": (lambda newest: (newest / "state.json").write_text('{"sha256'), "JSON"),
    "record missing": (lambda newest: (newest / "state.json").unlink(), "state.json"),
    "record of something else": (lambda newest: (newest / "state.json").write_text("[]"), "Error"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_state_is_told_of_and_passed_over(folder, damage):
    spoil, told = DAMAGES[damage]
    spoil(folder / "step-000000020")
    loaded = load_state(folder)
    assert loaded.record["step"] == 10
    assert torch.equal(loaded.tensors["weights"], tensors(10.0)["weights"])
    (note,) = loaded.notes
    assert note.startswith("step-000000020 is damaged and was skipped")
    assert re.search(told, note), note


def test_every_single_bit_of_the_record_is_guarded(folder):
    path = folder / "step-000000020" / "state.json"
    whole = path.read_bytes()
    intact = load_state(folder)
    for bit in range(0, 8 * len(whole), 37):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        found = load_state(folder)
        assert found.record["step"] == 10 or found.record == intact.record, bit


def test_damaged_states_do_not_push_good_ones_out(folder):
    truncate(folder / "step-000000020")
    set_aside(load_state(folder).passed)
    save_state(folder, 12, tensors(12.0), {"step": 12})
    assert [path.name for path in list_states(folder)] == ["step-000000010", "step-000000012"]
    assert (folder / "damaged-step-000000020").is_dir()


def test_all_states_damaged_is_an_error_that_names_them_all(folder):
    for place in list_states(folder):
        truncate(place)
    with pytest.raises(StateError, match=r"no intact state.*step-000000020.*step-000000010.*Start a new run"):
        load_state(folder)


def test_no_state_at_all_is_the_start(tmp_path):
    loaded = load_state(tmp_path / "state")
    assert (loaded.tensors, loaded.record) == ({}, {})
    assert "starting from the beginning" in loaded.notes[0]


def test_leftovers_of_a_killed_writer_are_ignored_and_swept_up(folder):
    left = folder / ".step-000000030.part"
    left.mkdir()
    (left / "shard-0-of-1.safetensors").write_bytes(b"half of a sha")
    assert step_of(folder) == 20
    save_state(folder, 40, tensors(40.0), {"step": 40})
    assert not left.exists()


@pytest.mark.parametrize("what", ["save_file", "_write_record", "_sync"])
def test_full_disk_is_said_and_earlier_states_stay(folder, monkeypatch, what):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state, what, refuse)
    with pytest.raises(StateError, match=r"step 30 could not be written.*No space left.*intact.*make room"):
        save_state(folder, 30, tensors(30.0), {"step": 30})
    monkeypatch.undo()
    assert step_of(folder) == 20
    save_state(folder, 30, tensors(30.0), {"step": 30})
    assert step_of(folder) == 30


def test_full_disk_before_the_first_state_speaks_of_none_before(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state, "save_file", refuse)
    with pytest.raises(StateError, match=r"step 0 could not be written.*No space left") as told:
        save_state(tmp_path / "new", 0, tensors(0.0), {"step": 0})
    assert "intact" not in str(told.value)


class Pair(Alone):
    """One of two processes, whose partner says what it is told to."""

    size = 2

    def __init__(self, partner):
        self.partner = partner

    def gather(self, value):
        return [value, self.partner(value)]


def test_failure_of_another_process_fails_this_one_too(tmp_path):
    told = iter([None, None, "Disk quota exceeded"])
    with pytest.raises(StateError, match="Disk quota exceeded"):
        save_state(tmp_path, 1, tensors(1.0), {}, world=Pair(lambda _: next(told)))
    assert list_states(tmp_path) == []


def test_pieces_of_two_processes_are_joined(tmp_path):
    from safetensors.torch import save_file

    draft = tmp_path / "step-000000001"
    draft.mkdir()
    whole = torch.arange(10.0).view(5, 2)
    parts = []
    for rank, piece in enumerate((whole[:3], whole[3:])):
        shard = f"shard-{rank}-of-2.safetensors"
        save_file({"weights": piece.contiguous()}, draft / shard)
        layout = {"weights": {"shape": [5, 2], "shard": shard, "offset": 3 * rank}}
        parts.append((shard, state._digest(draft / shard), layout))
    state._write_record(draft / "state.json", {"step": 1}, parts[::-1])
    assert torch.equal(load_state(tmp_path).tensors["weights"], whole)


def test_state_holds_no_pickle(folder):
    newest = folder / "step-000000020"
    assert sorted(path.name for path in newest.iterdir()) == ["shard-0-of-1.safetensors", "state.json"]
    json.loads((newest / "state.json").read_text())


@pytest.mark.parametrize("text", ["[" * 100_000, "5", "[]", '{"body": 5, "sha256": 5}', '{"body": "' + "[" * 9 + '"}'])
def test_a_state_whose_record_is_nested_or_odd_is_passed_over(folder, text):
    (folder / "step-000000020" / "state.json").write_text(text)
    assert step_of(folder) == 10


def test_a_state_whose_checked_record_is_nested_is_passed_over(folder):
    body = "[" * 100_000
    whole = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
    (folder / "step-000000020" / "state.json").write_text(whole)
    loaded = load_state(folder)
    assert loaded.record["step"] == 10
    assert "RecursionError" in loaded.notes[0]


def rewrite(place, change):
    """Change what a state's record says, with a checksum that fits."""
    body = json.loads(json.loads((place / "state.json").read_text())["body"])
    change(body)
    text = json.dumps(body)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (place / "state.json").write_text(json.dumps({"sha256": digest, "body": text}))


def test_a_state_names_no_file_outside_of_its_folder(folder, tmp_path):
    place = folder / "step-000000020"
    (shard,) = place.glob("shard-*")
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(shard.read_bytes())

    def change(body):
        body["shards"] = {str(outside): hashlib.sha256(outside.read_bytes()).hexdigest()}
        for pieces in body["layout"].values():
            pieces[0]["shard"] = str(outside)

    rewrite(place, change)
    loaded = load_state(folder)
    assert loaded.record["step"] == 10
    assert "not a file of a state" in loaded.notes[0]


@pytest.mark.parametrize("name", ["state.json", "shard-0-of-1.safetensors"])
def test_a_pipe_in_a_state_is_not_waited_for(folder, name):
    file = folder / "step-000000020" / name
    file.unlink()
    os.mkfifo(file)
    assert step_of(folder) == 10
