"""Twenty deaths of a real process, at steps and in the midst of writing, leave no trace in the result."""

import pytest

from support.trainings import assert_same_end, kill_plan, png_folder, settings, train_with_kills

pytestmark = pytest.mark.slow

NOMMER = {
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 2, 2],
    "cnn_reduction": 2,
    "window_size": 4,
}


@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_kills_with_workers_and_every_augmentation_leave_no_trace(tmp_path, seed):
    data = png_folder(tmp_path / "data", train=100, val=21, bad=1)
    values = settings(data__workers=2, schedule__epochs=6, seed=seed)
    check(tmp_path, data, values, kill_plan(20, seed))


def test_twenty_kills_leave_the_noise_of_nominations_as_it_is(tmp_path):
    data = png_folder(tmp_path / "data", train=100, val=21, bad=1)
    more = {"model.name": "nommer_tiny", "model.options": NOMMER, "data.img_size": 32}
    check(tmp_path, data, settings(schedule__epochs=6) | more, kill_plan(20, 7))


@pytest.mark.parametrize("host", ["bert", "gpt"])
def test_twenty_kills_leave_no_trace_in_batches_of_like_length(tmp_path, host):
    pytest.importorskip("transformers")
    from support.texts import make_model, write_cola

    data, model = write_cola(tmp_path / "cola", train=100, dev=21), make_model(tmp_path / host, host)
    head = "second_order:num_heads=1,head_dim=4,drop_rate=0.5"
    values = {"task": "text", "model.name": str(model), "model.plugins": [head], "optim.batch_size": 16, "seed": 3}
    values |= {"schedule.epochs": 6, "keep.every_steps": 2, "engine.device": "cpu", "engine.threads": 1}
    check(tmp_path, data, values, kill_plan(20, 5))


def check(tmp_path, data, values, kills):
    assert train_with_kills(tmp_path / "whole", data, values, []) == [0]
    statuses = train_with_kills(tmp_path / "killed", data, values, kills)
    assert statuses == [-9] * len(kills) + [0]
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
