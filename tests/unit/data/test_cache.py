"""Images of files that are decoded once give what reading them in every epoch gives."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from saccade.data import reading
from saccade.data.cache import CachedSource, EncodedFeed, Memory, decoded_bytes, framed_bytes
from saccade.data.draws import Order
from saccade.data.feed import ResidentFeed
from saccade.data.framing import Framing, ImageEncoder
from saccade.data.image import BadSample
from saccade.data.loader import FileFeed, TooManyBad
from saccade.data.open import open_data
from saccade.data.reading import in_threads, read_all
from saccade.data.source import FileSource
from saccade.data.validation import Validation
from saccade.settings import AugmentConfig, machine_rules
from saccade.tasks.opening import choose_task
from saccade.training.parallel import Alone
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.setup import assemble
from saccade.training.train import train
from support.augmenting import class_augment
from support.trainings import TINY, png_folder, settings, weights

CPU = torch.device("cpu")
IMAGE = 20 * 24 * 3  # bytes of one of the folder's
pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be read")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return png_folder(tmp_path_factory.mktemp("pictures"), bad=2)


@pytest.fixture
def reads(monkeypatch):
    """The numbers of the images whose files are opened."""
    seen = []
    original = FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda self, index: seen.append(index) or original(self, index))
    return seen


def feed(kind, source, *, crop, limit=0.1, repeats=1, **more):
    config = AugmentConfig(crop=crop, rand_ops=1, mixup=0.2, repeats=repeats)
    augment = class_augment(config, mean=[0.5] * 3, std=[0.2] * 3, num_classes=3, img_size=16)
    order = Order(length=len(source), batch_size=16, seed=0, repeats=repeats)
    encode = ImageEncoder(Framing(16, config=config, shorter=18))
    more |= {"size": 1} if kind is EncodedFeed else {}
    return kind(source, order=order, expand=augment, encode=encode, device=CPU, bad_limit=limit, **more)


def batches(reading, epochs=(0, 1, 2), start=0):
    found = [(reading.expand(batch, strong=True), batch) for e in epochs for batch in reading.epoch(e, start=start)]
    reading.close()
    return [{**expanded, "key": batch["key"]} for expanded, batch in found]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize(("crop", "threads", "repeats"), [("pad", 2, 1), ("none", 1, 2)])
def test_framed_set_gives_what_its_files_give(folder, crop, threads, repeats):
    source = open_data(str(folder)).train
    kept = feed(EncodedFeed, source, crop=crop, threads=threads, repeats=repeats)
    files = feed(FileFeed, source, crop=crop, workers=0, repeats=repeats)
    assert_same(batches(kept), batches(files))
    assert_same(batches(kept, [3], start=1), batches(files, [3], start=1))
    assert set(kept.bad) == {"train/class0/000.png", "train/class1/001.png"}
    assert files.bad.items() <= kept.bad.items()  # files are found bad when they are drawn


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (0, 2), (2, 1)])
def test_decoded_set_gives_what_its_files_give(folder, workers, threads):
    source = open_data(str(folder)).train
    kept = feed(FileFeed, CachedSource(source, limit=1e9, threads=2), crop="resized", workers=workers, threads=threads)
    files = feed(FileFeed, source, crop="resized", workers=0)
    assert_same(batches(kept), batches(files))
    assert kept.bad == files.bad


def test_framed_set_is_read_once(folder, reads):
    source = open_data(str(folder)).train
    batches(feed(EncodedFeed, source, crop="pad", threads=2))
    assert sorted(reads) == list(range(50))


@pytest.mark.parametrize("part", [slice(None), slice(1, 40, 3)])
def test_what_was_read_serves_the_next_feed_of_it_or_of_a_part(folder, reads, part):
    source, memory = open_data(str(folder)).train, Memory()
    first = feed(EncodedFeed, source, crop="pad", threads=2, memory=memory)
    batches(first)
    some = source.subset(range(50)[part])
    expected = batches(feed(EncodedFeed, some, crop="pad", threads=2))
    reads.clear()
    again = feed(EncodedFeed, some, crop="pad", threads=2, memory=memory)
    assert_same(batches(again), expected)
    assert reads == []
    assert again.bad == {name: why for name, why in first.bad.items() if name in map(some.name, range(len(some)))}


def test_what_was_read_serves_nobody_who_would_read_otherwise(folder, reads):
    data, memory = open_data(str(folder)), Memory()
    batches(feed(EncodedFeed, data.train, crop="pad", threads=2, memory=memory))
    small = feed(EncodedFeed, data.train, crop="pad", threads=2, memory=memory)
    small.encode = ImageEncoder(Framing(8))
    relabelled = data.train.subset(range(50))
    relabelled.targets.rows[:] = relabelled.targets.rows[::-1].copy()
    for other in (small, feed(EncodedFeed, relabelled, crop="pad", threads=2, memory=memory)):
        reads.clear()
        batches(other)
        assert len(reads) == 50


def test_runs_on_one_opened_set_read_it_once_and_end_alike(folder, tmp_path, reads):
    from saccade.comparison.plan.snapshot import DataCache
    from saccade.comparison.run.worker import train_run

    values = settings(schedule__epochs=1, data__bad_limit=0.5, augment__crop="pad")
    config, cache = configure("small", values | {"data.path": str(folder)}), DataCache()
    count = {}
    for name, opened in (("first", cache), ("second", cache), ("alone", None)):
        reads.clear()
        assert train_run(config, tmp_path / name, opened).kind == "finished"
        count[name] = len(reads)
    assert count["first"] == count["alone"] == count["second"] + 59  # those of its page are read by each
    ends = [weights(tmp_path / name) for name in count]
    assert all(torch.equal(ends[0][name], other[name]) for other in ends[1:] for name in other)


def test_decoded_set_is_read_once_but_for_what_cannot_be_read(folder, reads):
    batches(feed(FileFeed, CachedSource(open_data(str(folder)).train, limit=1e9, threads=2), crop="resized", workers=0))
    bad = {index for index in reads if reads.count(index) > 1}
    assert set(reads) == set(range(50))
    assert bad <= {0, 17}  # the first of the first two classes


def test_what_does_not_fit_is_read_again(folder, reads):
    source = open_data(str(folder)).train
    kept = CachedSource(source, limit=10.5 * IMAGE, threads=2)
    kept.ready()
    assert len(kept.images) == 10
    reads.clear()
    few = feed(FileFeed, kept, crop="resized", workers=0)
    first = batches(few)
    assert 0 < len(reads) < 3 * 48
    assert_same(first, batches(feed(FileFeed, source, crop="resized", workers=0)))


def test_kept_images_outlive_their_files(tmp_path):
    for crop in ("pad", "resized"):
        folder = png_folder(tmp_path / crop)
        source = open_data(str(folder)).train
        if crop == "pad":
            reading = feed(EncodedFeed, source, crop=crop, threads=1)
        else:
            reading = feed(FileFeed, CachedSource(source, limit=1e9, threads=1), crop=crop, workers=0)
        first = batches(reading, [0])
        shutil.rmtree(folder)
        assert_same(batches(reading, [0]), first)
        assert reading.bad == {}


def test_too_many_unreadable_images_stop_before_the_first_step(folder):
    reading = feed(EncodedFeed, open_data(str(folder)).train, crop="pad", threads=2, limit=0.02)
    with pytest.raises(TooManyBad, match=r"2 of 50 images.*train/class.*raise data.bad_limit"):
        next(reading.epoch(0))


def test_set_that_is_gone_stops_with_a_plain_message(tmp_path):
    folder = png_folder(tmp_path / "pictures")
    reading = feed(EncodedFeed, open_data(str(folder)).train, crop="pad", threads=2, limit=1.0)
    shutil.rmtree(folder)
    with pytest.raises(TooManyBad, match=r"^20 images in a row.*does not exist.*still available"):
        next(reading.epoch(0))


def test_size_is_told_from_a_few_images(folder):
    assert decoded_bytes(open_data(str(folder)).train) == 50 * IMAGE
    assert framed_bytes(50, Framing(16)) == 50 * 3 * 16 * 16


def parts(folder, **more):
    given = {"data.img_size": 16, "data.workers": 0, "model.options": TINY, "optim.batch_size": 16}
    data, choice = open_data(str(folder)), choose_task("classify")
    config, spec = resolve(configure(None, given | more), choice, data, CPU)
    return assemble(config, choice, data, spec, world=Alone(), device=CPU)


@pytest.mark.parametrize(("crop", "kind"), [("pad", EncodedFeed), ("resized", FileFeed)])
def test_set_is_kept_up_to_the_limit_and_the_user_is_told(folder, monkeypatch, crop, kind):
    small = parts(folder, **{"augment.crop": crop, "data.workers": 2})
    assert type(small.feed) is kind
    assert isinstance(small.feed.source, CachedSource) == (crop == "resized")
    assert "50 images are decoded once and kept in memory" in small.feed.notes[0]
    monkeypatch.setattr(machine_rules, "LIMIT", 1000)
    for resident, kept in [("auto", False), ("never", False), ("always", True)]:
        found = parts(folder, **{"augment.crop": crop, "data.resident": resident})
        assert bool(found.feed.notes) == kept
        assert isinstance(found.feed, ResidentFeed) == (kept and crop == "pad")
        assert found.validation.keep == kept


@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_run_ends_with_the_same_weights_whether_images_are_kept_or_not(folder, tmp_path, crop):
    for resident in ("auto", "never"):
        values = settings(data__resident=resident, augment__crop=crop, data__bad_limit=0.5, schedule__epochs=2)
        train(str(folder), out=tmp_path / resident, settings=values, quiet=True)
    kept, read = weights(tmp_path / "auto"), weights(tmp_path / "never")
    assert all(torch.equal(kept[name], read[name]) for name in read)


def validation(source, *, keep):
    framing = Framing(16)
    return Validation(source, encode=ImageEncoder(framing), framing=framing, batch_size=4, device=CPU, keep=keep)


def test_validation_images_are_read_once(folder, reads):
    source = open_data(str(folder)).val
    again, once = (validation(source, keep=keep) for keep in (False, True))
    expected = list(again.batches())
    reads.clear()
    for _ in range(2):
        assert_same(list(once.batches()), expected)
    assert sorted(reads) == list(range(9))
    assert once.bad == again.bad
    assert len(once.bad) == 2


def test_validation_that_was_broken_off_is_read_anew(folder):
    once = validation(open_data(str(folder)).val, keep=True)
    next(once.batches())
    assert sum(len(batch["place"]) for batch in once.batches()) == 7


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_keep_the_order(threads):
    assert list(in_threads(lambda n: n * n, range(500), threads)) == [n * n for n in range(500)]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_many_samples_are_read_by_processes_as_by_threads(monkeypatch):
    """What comes back is the same, what cannot be read included, and in order."""
    own = os.getpid()

    def read(index):
        if index % 50 == 7:
            return BadSample(f"number {index}", "it is odd", "range")
        return {"image": torch.full((2, 3), index), "target": torch.tensor(index), "elsewhere": os.getpid() != own}

    here = list(read_all(read, 150, 2))
    monkeypatch.setattr(reading, "MANY", 100)
    there = list(read_all(read, 150, 2))
    assert not any(found["elsewhere"] for found in here if not isinstance(found, BadSample))
    for first, second in zip(here, there, strict=True):
        if isinstance(first, BadSample):
            assert (second.name, second.fault) == (first.name, first.fault)
        else:
            assert second.pop("elsewhere")
            assert all(torch.equal(second[name], first[name]) for name in ("image", "target"))


KILLED = """
import os, signal, numpy, torch
from saccade.data import reading

def read(index):
    if os.getpid() != parent:
        os.write(1, b"%d\\n" % os.getpid())
    return torch.zeros(100_000)  # more than a pipe holds

parent, reading.MANY = os.getpid(), 100
for number, _ in enumerate(reading.read_all(read, 1000, 2)):
    if number == 100:
        os.kill(parent, signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_processes_that_read_end_with_the_one_that_began_them():
    found = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, timeout=20)  # all have closed its end
    assert found.returncode == -signal.SIGKILL
    assert len(set(found.stdout.split())) == 2
