"""Tar shards stream in constant memory, in an order that is a function of seed, epoch and reader."""

import gc
import json
import pickle
import tarfile
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from saccade.data import shards
from saccade.data.image import BadSample, count_bad
from saccade.data.open import open_data
from saccade.data.shards import ShardStream
from saccade.data.source import Stream
from support.images import encoded, pixels, write_shard

ALONE = {"rank": 0, "world": 1, "worker": 0, "workers": 1}


def write_shards(folder, count, each, *, prefix="train", start=0, classes=2):
    paths = []
    for shard in range(count):
        numbers = range(start + shard * each, start + (shard + 1) * each)
        samples = [(f"{n:05d}", encoded(n), str(n % classes)) for n in numbers]
        paths.append(folder / f"{prefix}-{shard:03d}.tar")
        write_shard(paths[-1], samples)
    return paths


def read(stream, *, seed=0, epoch=0, skip=0, **reader):
    return list(stream.samples(seed=seed, epoch=epoch, skip=skip, **(ALONE | reader)))


def names(samples):
    return [sample.name for sample in samples]


@pytest.fixture
def stream(tmp_path):
    return ShardStream(write_shards(tmp_path, 6, 5), classes=("even", "odd"), buffer=8)


def test_every_sample_comes_once_with_its_own_image_and_label(stream):
    samples = read(stream)
    assert sorted(names(samples)) == [f"train-{n // 5:03d}.tar/{n:05d}" for n in range(30)]
    for sample in samples:
        number = int(sample.name[-5:])
        assert sample.target == number % 2
        assert np.abs(sample.inputs["image"].astype(int) - pixels(number)).mean() < 8  # others differ by 50
    assert len({sample.key for sample in samples}) == 30


def test_order_is_a_function_of_seed_and_epoch(stream):
    first = names(read(stream))
    assert first == names(read(pickle.loads(pickle.dumps(stream))))
    others = [names(read(stream, **change)) for change in ({"seed": 1}, {"epoch": 1}, {"seed": -1})]
    assert all(sorted(other) == sorted(first) and other != first for other in others)
    keys = {sample.name: sample.key for sample in read(stream)}
    assert keys == {sample.name: sample.key for sample in read(stream, epoch=3)}


def test_shards_and_samples_are_both_shuffled_anew_every_epoch(stream):
    stream.buffer = 1
    orders = [names(read(stream, epoch=epoch)) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert all(order[i : i + 5] == sorted(order[i : i + 5]) for order in orders for i in range(0, 30, 5))
    alone = ShardStream(stream.shards[:1], classes=stream.classes, buffer=8)
    assert len({tuple(names(read(alone, epoch=epoch))) for epoch in range(4)}) > 1


@pytest.mark.parametrize(("world", "workers"), [(1, 2), (2, 1), (2, 3), (4, 2), (7, 3)])
def test_readers_share_the_epoch_out_without_overlap(stream, world, workers):
    parts = [
        names(read(stream, rank=rank, world=world, worker=worker, workers=workers))
        for rank in range(world)
        for worker in range(workers)
    ]
    every = [name for part in parts for name in part]
    assert len(every) == len(set(every)) == 30
    assert max(map(len, parts)) - min(map(len, parts)) <= 5


@pytest.mark.parametrize("skip", [1, 7, 8, 20, 29, 30, 99])
def test_skipping_gives_the_rest_of_the_same_order(stream, skip, monkeypatch):
    whole = read(stream)
    decoded, reads = [], []
    decode, fetch = shards.decode, shards.read_member
    monkeypatch.setattr(shards, "decode", lambda data, name, **o: decoded.append(name) or decode(data, name=name, **o))
    monkeypatch.setattr(shards, "read_member", lambda path, **o: reads.append(path) or fetch(path, **o))
    rest = read(stream, skip=skip)
    assert names(rest) == names(whole)[skip:]
    assert len(reads) == len(rest)
    assert decoded == names(rest)
    for one, other in zip(rest, whole[skip:], strict=True):
        np.testing.assert_array_equal(one.inputs["image"], other.inputs["image"])


def test_memory_stays_at_the_buffer_while_a_set_ten_times_as_large_streams(tmp_path):
    random = np.random.default_rng(0)
    noise = Image.fromarray(random.integers(0, 256, (96, 96, 3), dtype=np.uint8))
    noise.save(tmp_path / "noise.png")
    data = (tmp_path / "noise.png").read_bytes()  # 27 kB, as large as its pixels
    buffer, count = 20, 200
    for shard in range(4):
        write_shard(tmp_path / f"{shard}.tar", [(f"{shard}-{n}", data, str(n % 2)) for n in range(count // 4)])
    stream = ShardStream(sorted(tmp_path.glob("*.tar")), classes=("a", "b"), buffer=buffer)
    next(stream.samples(seed=1, epoch=0, **ALONE))  # what is kept from the first image on
    gc.collect()
    tracemalloc.start()
    assert sum(1 for _ in stream.samples(seed=0, epoch=0, **ALONE)) == count
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(data) > 25_000
    assert peak < 2 * buffer * len(data)  # a fifth of the set


def test_truncated_shard_gives_what_is_there_and_names_itself(tmp_path):
    whole, cut = write_shards(tmp_path, 2, 5)
    data = cut.read_bytes()
    with tarfile.open(cut) as tar:
        image = tar.getmember("00008.jpg")
    for end in (image.offset_data + 10, image.offset + 100):
        cut.write_bytes(data[:end])
        samples = read(ShardStream([whole, cut], classes=("a", "b")))
        bad = [sample for sample in samples if isinstance(sample, BadSample)]
        assert len(samples) - len(bad) == 5 + 3
        assert [b.name for b in bad] == [str(cut)]
        assert "truncated" in bad[0].reason


def test_cut_image_after_its_label_is_lost_with_the_shard_not_decoded(tmp_path):
    (path,) = write_shards(tmp_path, 1, 4)
    with tarfile.open(path) as old, tarfile.open(tmp_path / "b.tar", "w") as new:
        for member in sorted(old, key=lambda member: member.name):  # 00000.cls, 00000.jpg, ...
            new.addfile(member, old.extractfile(member))
    with tarfile.open(tmp_path / "b.tar") as tar:
        place = tar.getmember("00003.jpg").offset_data
    (tmp_path / "b.tar").write_bytes((tmp_path / "b.tar").read_bytes()[: place + 50])
    samples = read(ShardStream([tmp_path / "b.tar"], classes=("a", "b")))
    assert [s.name for s in samples if isinstance(s, BadSample)] == [str(tmp_path / "b.tar")]
    assert len(samples) == 4


def test_shard_that_ends_without_an_end_mark_keeps_all_samples_but_is_reported(tmp_path):
    (path,) = write_shards(tmp_path, 1, 3)
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    path.write_bytes(path.read_bytes()[: last.offset_data + 512])
    samples = read(ShardStream([path], classes=("a", "b")))
    assert [isinstance(sample, BadSample) for sample in samples].count(False) == 3
    assert len(samples) == 4


@pytest.mark.parametrize("content", [b"", b"text" * 500, b"\x1f\x8b\x08" + b"zip" * 500])
def test_what_is_no_tar_is_reported(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content)
    (bad,) = read(ShardStream([tmp_path / "a.tar"], classes=("a", "b")))
    assert isinstance(bad, BadSample)
    assert str(tmp_path / "a.tar") in str(bad)


def test_missing_shard_is_reported_and_others_go_on(tmp_path):
    paths = write_shards(tmp_path, 2, 3)
    paths[0].unlink()
    samples = read(ShardStream(paths, classes=("a", "b")))
    assert sum(isinstance(sample, BadSample) for sample in samples) == 1
    assert len(samples) == 4


def lost(samples):
    return count_bad({bad.name: bad.fault for bad in samples if isinstance(bad, BadSample)})


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
def test_shards_cut_short_count_about_as_many_images_as_they_lost(tmp_path, share):
    paths = write_shards(tmp_path, 4, 40)
    for path in paths[1:]:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
    samples = read(ShardStream(paths, classes=("a", "b")))
    there = sum(not isinstance(sample, BadSample) for sample in samples)
    assert len(samples) == there + 3
    assert abs(lost(samples) - (160 - there)) < 0.1 * 160


def test_missing_and_damaged_shards_count_their_images(tmp_path):
    paths = write_shards(tmp_path, 3, 40)
    paths[0].unlink()
    with tarfile.open(paths[1]) as tar:
        middle = tar.getmember("00060.jpg").offset
    data = bytearray(paths[1].read_bytes())
    data[middle : middle + 512] = b"\xff" * 512
    paths[1].write_bytes(data)
    samples = read(ShardStream(paths, classes=("a", "b")))
    assert sum(not isinstance(sample, BadSample) for sample in samples) == 20 + 40
    assert abs(lost(samples) - 60) <= 8


def test_lost_images_are_not_made_up_where_no_shard_is_longer(tmp_path):
    (path,) = write_shards(tmp_path, 1, 40)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    samples = read(ShardStream([path], classes=("a", "b")))
    assert lost(samples) == 1
    (bad,) = [sample for sample in samples if isinstance(sample, BadSample)]
    assert "at least 1 image is lost (exact number unknown)" in bad.reason


def test_losses_of_validation_and_of_listed_training_shards_are_noted(tmp_path):
    write_shards(tmp_path, 2, 10)
    val = write_shards(tmp_path, 2, 10, prefix="val", start=100)
    (tmp_path / "classes.txt").write_text("a\nb\n")
    val[1].write_bytes(val[1].read_bytes()[:4000])
    assert any(note.startswith("validation:") and "val-001.tar" in note for note in open_data(str(tmp_path)).notes)
    val[1].rename(tmp_path / "alone-001.tar")
    val[0].rename(tmp_path / "alone-000.tar")
    data = open_data(str(tmp_path / "alone-*.tar"))
    assert any(note.startswith("training:") and "alone-001.tar" in note for note in data.notes)
    assert [bad.name for bad in data.train.lost] == [str(tmp_path / "alone-001.tar")]
    assert data.val.lost == ()


def test_shard_removed_while_it_is_read_gives_bad_images(tmp_path):
    (path,) = write_shards(tmp_path, 1, 20)
    samples = ShardStream([path], classes=("a", "b"), buffer=4).samples(seed=0, epoch=0, **ALONE)
    assert not isinstance(next(samples), BadSample)
    path.unlink()
    rest = list(samples)
    assert len(rest) == 19
    assert isinstance(rest[-1], BadSample)
    assert "its shard cannot be read" in rest[-1].reason


def test_number_that_is_no_class_is_not_taken_for_a_place_where_classes_are_numbers(tmp_path):
    write_shard(tmp_path / "a.tar", [(f"{n}", encoded(n), label) for n, label in enumerate(["1", "02", "3", "0"])])
    got = {s.name: s for s in read(ShardStream([tmp_path / "a.tar"], classes=("1", "2", "3")))}
    assert [got[f"a.tar/{n}"].target for n in range(3)] == [0, 1, 2]
    assert "'0' is not one of the 3 classes" in got["a.tar/3"].reason


def test_bad_samples_are_yielded_as_bad_images(tmp_path):
    good, broken = ("good", encoded(1), "1"), ("broken", b"text", "0")
    unknown, none = ("unknown", encoded(2), "7"), ("none", encoded(3), "")
    write_shard(tmp_path / "a.tar", [good, broken, unknown, none])
    got = {sample.name: sample for sample in read(ShardStream([tmp_path / "a.tar"], classes=("a", "b")))}
    assert got["a.tar/good"].target == 1
    assert "not an image" in got["a.tar/broken"].reason
    assert "'7' is not one of the 2 classes" in got["a.tar/unknown"].reason
    assert got["a.tar/none"].reason == "it has no label"


def test_folder_of_shards_opens_with_named_classes_and_json_labels(tmp_path):
    for split, count in (("train", 6), ("val", 4)):
        samples = [(f"sub.dir/{n}", encoded(n), json.dumps({"label": ["cat", "dog"][n % 2]})) for n in range(count)]
        write_shard(tmp_path / f"{split}-000.tar", samples, label="json")
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    data = open_data(str(tmp_path))
    assert isinstance(data.train, Stream)
    assert data.classes == ("dog", "cat")
    assert len(data.val) == 4
    assert data.val.labels.tolist() == [1, 0, 1, 0]
    assert data.val.read(2).shape == (24, 32, 3)
    assert sorted(sample.target for sample in read(data.train)) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("pattern", ["train-*.tar", "train-{000..002}.tar", "train-00{0,1,2}.tar"])
def test_pattern_of_shards_holds_validation_images_out(tmp_path, pattern):
    write_shards(tmp_path, 3, 8, classes=3)
    write_shards(tmp_path, 1, 8, prefix="other")
    data = open_data(str(tmp_path / pattern), val_share=0.25)
    assert data.classes == ("0", "1", "2")
    assert data.val.counts().tolist() == [2, 2, 2]
    assert data.train.length == 18
    held = {data.val.name(index) for index in range(len(data.val))}
    left = set(names(read(data.train)))
    assert len(left) == 18
    assert not left & held
    again = open_data(str(tmp_path / pattern), val_share=0.25)
    assert again.val.fingerprint() == data.val.fingerprint()


def test_long_names_are_read(tmp_path):
    name = "ü" * 40 + "/" + "x" * 120
    write_shard(tmp_path / "a.tar", [(name, encoded(1), "0"), ("b", encoded(2), "1")])
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tar") as old, tarfile.open(tmp_path / "b.tar", "w", format=format) as new:
            for member in old:
                new.addfile(member, old.extractfile(member))
        got = read(ShardStream([tmp_path / "b.tar"], classes=("a", "b")))
        assert sorted(names(got)) == sorted([f"b.tar/{name}", "b.tar/b"])


def test_no_shards_and_text_labels_without_classes_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no shards match"):
        open_data(str(tmp_path / "none-*.tar"))
    write_shard(tmp_path / "a.tar", [("1", encoded(1), "cat"), ("2", encoded(2), "dog")])
    with pytest.raises(ValueError, match=r"'cat', which is not a number; write .* classes\.txt"):
        open_data(str(tmp_path / "a.tar"))
