"""Steps asked are steps trained: one function says how many steps an epoch has, whatever batches come from."""

import math

import pytest
import torch

from saccade.data.cache import EncodedFeed
from saccade.data.loader import FileFeed, StreamFeed
from saccade.settings import TrainConfig, overlay
from saccade.settings.sizes import epochs_for, steps_of_epoch
from saccade.tasks.opening import open_samples
from saccade.training.pace import measure_pace
from saccade.training.parallel import Alone
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.setup import assemble
from support.images import encoded, write_shard
from support.questions import make_vilt, questions, write_questions
from support.texts import make_model, write_cola
from support.training import tiny
from support.trainings import png_folder

CPU = torch.device("cpu")
ASKED = 25
REPEATED, ONCE = ("resident", "array", "file", "kept", "cropped"), ("stream", "text", "vqa")  # that repeat no image
FEEDS = [(name, 1) for name in (*REPEATED, *ONCE)] + [(name, 3) for name in REPEATED]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Settings of sets that batches come from in every way, by name, with the kind of feed."""
    root = tmp_path_factory.mktemp("sets")
    (root / "shards").mkdir()
    write_shard(root / "shards" / "train-000.tar", [(f"{n:04d}", encoded(n), str(n % 3)) for n in range(48)])
    write_shard(root / "shards" / "val-000.tar", [(f"v{n}", encoded(100 + n), str(n % 3)) for n in range(9)])
    images = {"data.path": str(png_folder(root / "images"))}
    text = {"task": "text", "data.path": str(write_cola(root / "cola")), "model.name": str(make_model(root / "bert"))}
    vqa = {"task": "vqa", "data.path": str(write_questions(root / "vqa", list(questions(44))))}
    return {
        "resident": {"data.train_limit": 50},
        "array": {"data.train_limit": 50, "data.resident": "never"},
        "file": {**images, "data.resident": "never", "data.workers": 0},
        "kept": {**images, "data.workers": 0},
        "cropped": {**images, "augment.crop": "resized", "data.workers": 0},
        "stream": {"data.path": str(root / "shards"), "data.workers": 0},
        "text": text,
        "vqa": {**vqa, "model.name": str(make_vilt(root / "vilt")), "data.img_size": 32},
    }


KINDS = {"file": FileFeed, "array": FileFeed, "kept": EncodedFeed, "stream": StreamFeed}


def made(values, **more):
    given = {"optim.batch_size": 16, "schedule.steps": ASKED, "engine.device": "cpu", **values, **more}
    own = {} if "task" in values else {"data.img_size": 16, "model.options": tiny()["model.options"]}
    config = configure("text" if "task" in values else "quick", {**own, **given})
    choice, data = open_samples(config.task, config.data)
    resolved, spec = resolve(config, choice, data, CPU)
    return config, resolved, (choice, data), assemble(resolved, choice, data, spec, world=Alone(), device=CPU)


@pytest.mark.parametrize(("name", "repeats"), FEEDS)
@pytest.mark.parametrize("batch_size", [7, 16, 64])
def test_steps_asked_are_steps_trained(sets, name, batch_size, repeats):
    _, resolved, _, parts = made(sets[name], **{"optim.batch_size": batch_size, "augment.repeats": repeats})
    assert isinstance(parts.feed, KINDS.get(name, object))
    taken = sum(1 for _ in parts.feed.epoch(0))
    parts.feed.close()
    assert taken == parts.feed.steps
    trained = resolved.schedule.epochs * parts.feed.steps
    assert ASKED <= trained < ASKED + parts.feed.steps


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("repeats", [1, 3])
def test_a_run_is_timed_by_the_steps_that_it_has(sets, repeats, processes):
    config, _, opened, parts = made(sets["resident"], **{"augment.repeats": repeats})
    assert measure_pace(config, *opened, CPU, parts=processes).steps == parts.feed.steps == 3


def test_an_epoch_is_whole_batches_and_of_a_small_set_one():
    assert [steps_of_epoch(samples, 16) for samples in (1, 15, 16, 31, 32, 50)] == [1, 1, 1, 1, 2, 3]


def test_steps_asked_are_rounded_up_to_epochs():
    config = overlay(TrainConfig(), {"schedule.steps": 1200, "augment.repeats": 3})
    assert epochs_for(config, 1200, 3) == math.ceil(1200 / 400)
