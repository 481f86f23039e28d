import tracemalloc

import pytest
import torch

import saccade
from saccade.data.framing import Framing, ImageEncoder
from saccade.data.loader import StreamFeed, TooManyBad, check_bad
from saccade.data.open import open_data
from saccade.data.validation import Validation
from saccade.settings import AugmentConfig
from support.augmenting import class_augment
from support.images import encoded, write_shard
from support.training import tiny


def shards(folder, count=48, per_shard=8, broken=()):
    for shard in range(count // per_shard):
        numbers = range(shard * per_shard, (shard + 1) * per_shard)
        samples = [(f"{n:04d}", b"not an image" if n in broken else encoded(n), str(n % 3)) for n in numbers]
        write_shard(folder / f"train-{shard:03d}.tar", samples)
    write_shard(folder / "val-000.tar", [(f"v{n}", encoded(1000 + n), str(n % 3)) for n in range(9)])
    return str(folder)


def feed(path, *, workers=0, steps=5, batch_size=8, bad_limit=0.5, **options):
    config = AugmentConfig(crop="resized", scale=[0.5, 1.0])
    augment = class_augment(config, mean=[0.5] * 3, std=[0.25] * 3, num_classes=3, img_size=16)
    return StreamFeed(
        open_data(path, buffer=6).train,
        steps=steps,
        batch_size=batch_size,
        seed=3,
        expand=augment,
        encode=ImageEncoder(Framing(16, config)),
        device=torch.device("cpu"),
        workers=workers,
        bad_limit=bad_limit,
        **options,
    )


def taken(batches):
    return [{name: tensor.clone() for name, tensor in batch.items()} for batch in batches]


def same(a, b):
    return len(a) == len(b) and all(
        one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
        for one, two in zip(a, b, strict=True)
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
    one, two = (torch.cat([b["target"] for b in feed(path).epoch(e)]) for e in (0, 1))
    assert not torch.equal(one, two)


def test_a_stream_that_ends_begins_again(tmp_path):
    path = shards(tmp_path, count=16)
    whole = taken(feed(path, steps=7).epoch(0))
    assert len(whole) == 7
    assert same(taken(feed(path, steps=7).epoch(0, start=5)), whole[5:])


def test_bad_images_are_replaced_and_named(tmp_path):
    source = feed(shards(tmp_path, broken=(5, 17)), steps=6)
    with pytest.warns(UserWarning, match="cannot be read"):
        batches = taken(source.epoch(0))
    assert len(source.bad) == 2
    assert all((batch["image"].flatten(1).float().std(1) > 0).all() for batch in batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_without_a_good_image_take_the_next_one_and_resume_the_same(tmp_path, workers):
    path = shards(tmp_path, broken=(3, 4, 5, 17, 30, 31))
    options = {"workers": workers, "batch_size": 1, "steps": 48}
    source = feed(path, **options)
    whole = taken(source.epoch(0))
    assert len(source.bad) == 6
    keys = torch.cat([batch["key"] for batch in whole])
    assert len(keys.unique()) == 48  # each has draws of its own
    for start in (1, 7, 20, 40):
        assert same(taken(feed(path, **options).epoch(0, start=start)), whole[start:])


def test_stream_of_nothing_but_bad_images_stops(tmp_path):
    source = feed(shards(tmp_path, broken=range(48)), bad_limit=1.0)
    with pytest.raises(TooManyBad, match="in a row cannot be read"):
        next(source.epoch(0))


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def test_shards_cut_short_count_towards_the_limit(tmp_path):
    path = shards(tmp_path, count=96, per_shard=24)
    for number in (1, 2, 3):
        cut(tmp_path / f"train-{number:03d}.tar", 0.2)
    with pytest.raises(TooManyBad, match=r"\d\d of \d+ images cannot be read.*train-00\d\.tar"):
        taken(feed(path, bad_limit=0.05, steps=6).epoch(0))


def test_losses_that_listing_found_stop_training_before_its_first_step(tmp_path):
    path = shards(tmp_path, count=96, per_shard=24)
    (tmp_path / "classes.txt").write_text("x\ny\nz\n")
    cut(tmp_path / "train-003.tar", 0.2)
    source = feed(path, bad_limit=0.05)
    source.stream.indexed()
    with pytest.raises(TooManyBad, match=r"train-003\.tar"):
        next(source.epoch(0))
    assert len(source.bad) == 1


def test_losses_of_validation_shards_are_bad_images_and_count(tmp_path):
    path = shards(tmp_path)
    write_shard(tmp_path / "val-001.tar", [(f"w{n}", encoded(2000 + n), str(n % 3)) for n in range(9)])
    cut(tmp_path / "val-001.tar", 0.3)
    val = open_data(path).val
    framing = Framing(16)
    validation = Validation(
        val, encode=ImageEncoder(framing), framing=framing, batch_size=4, device=torch.device("cpu")
    )
    assert list(validation.bad) == [str(tmp_path / "val-001.tar")]
    assert sum(len(batch["place"]) for batch in validation.batches()) == len(val) < 18
    with pytest.raises(TooManyBad, match=r"val-001\.tar"):
        check_bad(validation.bad, 0.05 * len(val), of=len(val))


def test_processes_read_different_images(tmp_path):
    path = shards(tmp_path)
    parts = [torch.cat([b["key"] for b in feed(path, steps=2, rank=r, world=2).epoch(0)]) for r in (0, 1)]
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
