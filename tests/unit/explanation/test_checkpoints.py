import hashlib
import json

import pytest
import torch
from safetensors.torch import save_file

from saccade.building.build import build_model
from saccade.data.spec import InputSpec
from saccade.explanation.checkpoints import list_checkpoints, open_checkpoints, read_weights
from saccade.models import CheckpointError
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig

CONFIG = ModelConfig(name="vit_tiny_patch16_224", options={"embed_dim": 12, "depth": 1, "num_heads": 2})


def shape():
    return InputSpec(("a", "b"), in_chans=3, img_size=32, mean=[0.5] * 3, std=[0.5] * 3)


def write_state(place, shards):
    """Write a state whose tensors are cut along their first axis, one piece a shard."""
    place.mkdir(parents=True)
    layout, digests = {}, {}
    for index, tensors in enumerate(shards):
        name = f"shard-{index}-of-{len(shards)}.safetensors"
        save_file(tensors, place / name)
        digests[name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
        for key, value in tensors.items():
            shape = list(torch.cat([shard[key] for shard in shards if key in shard]).shape) if value.ndim else []
            offset = sum(len(shard[key]) for shard in shards[:index] if key in shard)
            layout.setdefault(key, []).append({"shard": name, "offset": offset, "shape": shape})
    body = json.dumps({"layout": layout, "record": {}, "shards": digests})
    digest = hashlib.sha256(body.encode()).hexdigest()
    (place / "state.json").write_text(json.dumps({"sha256": digest, "body": body}))


@pytest.fixture
def run(tmp_path):
    models = [build_model(CONFIG, shape(), seed=seed) for seed in range(3)]
    for step, model in zip((4, 12), models, strict=False):
        weights = {f"task.model.{name}": value.clone() for name, value in model.state_dict().items()}
        write_state(tmp_path / "state" / f"step-{step:09d}", [weights])
    save_model(tmp_path / "model.safetensors", models[2].state_dict(), CONFIG, shape())
    return tmp_path, models


def test_models_come_oldest_first_with_the_weights_they_had(run):
    path, models = run
    opened, note = open_checkpoints(path)
    assert [name for name, _ in opened] == ["step 4", "step 12", "final weights"]
    for (_, got), want in zip(opened, models, strict=True):
        for name, value in want.state_dict().items():
            assert torch.equal(got.state_dict()[name], value)
        assert not got.training
    assert "step 4, step 12" in note
    assert "keep.states" in note


def test_last_state_with_the_final_weights_is_shown_once(run):
    path, models = run
    save_model(path / "model.safetensors", models[1].state_dict(), CONFIG, shape())
    assert [name for name, _ in open_checkpoints(path)[0]] == ["step 4", "step 12 (final weights)"]


def test_run_without_states_says_that_only_the_last_weights_are_there(tmp_path):
    save_model(tmp_path / "model.safetensors", build_model(CONFIG, shape(), seed=0).state_dict(), CONFIG, shape())
    models, note = open_checkpoints(tmp_path)
    assert [name for name, _ in models] == ["final weights"]
    assert "only its last weights" in note


def test_pieces_are_joined_and_the_average_counts(tmp_path):
    whole = torch.arange(6.0).view(3, 2)
    shards = [
        {"task.model.w": whole[:2].clone(), "average.w": -whole[:2], "task.model.b": torch.ones(1)},
        {"task.model.w": whole[2:].clone(), "average.w": -whole[2:]},
    ]
    write_state(tmp_path / "step-000000001", shards)
    weights = read_weights(tmp_path / "step-000000001")
    assert torch.equal(weights["w"], -whole)
    assert torch.equal(weights["b"], torch.ones(1))


def test_damaged_state_is_left_out_with_a_note(run):
    path, _ = run
    (path / "state" / "step-000000012" / "state.json").write_text("{}")
    models, note = open_checkpoints(path)
    assert [name for name, _ in models] == ["step 4", "final weights"]
    assert "step-000000012 could not be read" in note
    with pytest.raises(CheckpointError, match="not a readable state"):
        read_weights(path / "state" / "step-000000012")


def test_state_with_a_changed_file_of_weights_is_left_out_with_a_note(run):
    path, _ = run
    shard = path / "state" / "step-000000004" / "shard-0-of-1.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    models, note = open_checkpoints(path)
    assert [name for name, _ in models] == ["step 12", "final weights"]
    assert "step-000000004 could not be read" in note


def test_of_two_states_at_one_step_the_later_counts(tmp_path):
    for name in ("step-000000002", "step-000000002.1", "step-000000001", "damaged-step-000000003"):
        (tmp_path / "state" / name).mkdir(parents=True)
    assert [(step, place.name) for step, place in list_checkpoints(tmp_path)] == [
        (1, "step-000000001"),
        (2, "step-000000002.1"),
    ]


def write_epochs(path, ends):
    lines = [json.dumps({"epoch": epoch, "step": step}) for epoch, step in ends]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_epochs_are_chosen_by_number(run):
    path, models = run
    write_epochs(path, [(1, 4), (2, 8), (3, 12), (4, 16)])
    opened, _ = open_checkpoints(path, epochs=[1, 4])
    assert [name for name, _ in opened] == ["epoch 1", "epoch 4 (final weights)"]
    for (_, got), want in zip(opened, (models[0], models[2]), strict=True):
        assert all(torch.equal(got.state_dict()[name], value) for name, value in want.state_dict().items())
    assert [name for name, _ in open_checkpoints(path, epochs=[3])[0]] == ["epoch 3"]


def test_an_epoch_whose_weights_were_not_kept_is_refused(run):
    path, _ = run
    write_epochs(path, [(1, 4), (2, 8), (3, 12)])
    with pytest.raises(ValueError, match=r"epochs=\[2\]: .* kept .* epochs 1, 3"):
        open_checkpoints(path, epochs=[2])
