import tracemalloc

import pytest
import torch

import saccade
from saccade.config import AugmentConfig
from saccade.data.augment import Augment
from saccade.data.loader import Framing, StreamFeed
from saccade.data.open import open_data
from support.pictures import encoded, write_shard
from support.training import tiny


def shards(folder, count=48, per_shard=8, broken=()):
    for shard in range(count // per_shard):
        numbers = range(shard * per_shard, (shard + 1) * per_shard)
        samples = [(f"{n:04d}", b"not a picture" if n in broken else encoded(n), str(n % 3)) for n in numbers]
        write_shard(folder / f"train-{shard:03d}.tar", samples)
    write_shard(folder / "val-000.tar", [(f"v{n}", encoded(1000 + n), str(n % 3)) for n in range(9)])
    return str(folder)


def feed(path, *, workers=0, steps=5, batch_size=8, bad_limit=0.5, **options):
    config = AugmentConfig(crop="resized", scale=[0.5, 1.0])
    augment = Augment(config, mean=[0.5] * 3, std=[0.25] * 3, num_classes=3, img_size=16)
    return StreamFeed(
        open_data(path, buffer=6).train,
        steps=steps,
        batch_size=batch_size,
        seed=3,
        augment=augment,
        framing=Framing(16, config),
        device=torch.device("cpu"),
        workers=workers,
        bad_limit=bad_limit,
        **options,
    )


def taken(batches):
    return [[tensor.clone() for tensor in batch] for batch in batches]


def same(a, b):
    return len(a) == len(b) and all(
        torch.equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_begun_in_its_middle_gives_the_rest(tmp_path, workers):
    path = shards(tmp_path, broken=(5, 17))
    whole = taken(feed(path, workers=workers).epoch(1))
    assert len(whole) == 5
    for start in (1, 3, 4):
        assert same(taken(feed(path, workers=workers).epoch(1, start=start)), whole[start:])


def test_another_epoch_comes_in_another_order(tmp_path):
    path = shards(tmp_path)
    one, two = (torch.cat([b.labels for b in feed(path).epoch(e)]) for e in (0, 1))
    assert not torch.equal(one, two)


def test_a_stream_that_ends_begins_again(tmp_path):
    path = shards(tmp_path, count=16)
    whole = taken(feed(path, steps=7).epoch(0))
    assert len(whole) == 7
    assert same(taken(feed(path, steps=7).epoch(0, start=5)), whole[5:])


def test_bad_pictures_are_replaced_and_named(tmp_path):
    source = feed(shards(tmp_path, broken=(5, 17)), steps=6)
    with pytest.warns(UserWarning, match="cannot be read"):
        batches = taken(source.epoch(0))
    assert len(source.bad) == 2
    assert all((pictures.flatten(1).float().std(1) > 0).all() for pictures, _, _ in batches)


def test_processes_read_different_pictures(tmp_path):
    path = shards(tmp_path)
    parts = [torch.cat([b.keys for b in feed(path, steps=2, rank=r, world=2).epoch(0)]) for r in (0, 1)]
    assert not set(parts[0].tolist()) & set(parts[1].tolist())


def test_memory_stays_flat_over_a_set_ten_times_the_buffer(tmp_path):
    path = shards(tmp_path, count=64)  # the buffer holds 6
    source = feed(path, steps=7)
    batches = source.epoch(0)
    next(batches)
    tracemalloc.start()
    peaks = []
    for _ in batches:
        tracemalloc.reset_peak()
        peaks.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(peaks) == 6
    assert peaks[-1] - peaks[0] < 200_000


def test_a_run_on_shards_ends_the_same_when_repeated(tmp_path):
    path = shards(tmp_path / "data")
    settings = tiny(data__workers=0, data__img_size=16) | {"data.train_limit": None, "optim.batch_size": 8}
    runs = [saccade.train(path, epochs=1, out=tmp_path / name, quiet=True, settings=settings) for name in "ab"]
    assert runs[0].metrics["train_loss"] == runs[1].metrics["train_loss"]
    assert runs[0].metrics["step"] == 6
