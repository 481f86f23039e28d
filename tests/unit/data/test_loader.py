import json

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.data.draws import Order
from saccade.data.feed import ResidentFeed
from saccade.data.framing import Framing, ImageEncoder, random_box
from saccade.data.loader import FileFeed, TooManyBad, _Reading
from saccade.data.open import open_data
from saccade.data.reading import make_loader
from saccade.settings import AugmentConfig
from saccade.tasks.opening import choose_task
from saccade.training.parallel import Alone
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.setup import assemble
from saccade.training.train import train
from support.augmenting import class_augment
from support.images import class_folders
from support.trainings import TINY, png_folder, settings

CONFIG = AugmentConfig(crop="resized", mixup=0.2, cutmix=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return png_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def spoiled(tmp_path):
    return png_folder(tmp_path / "pictures", bad=2)


def augment():
    return class_augment(CONFIG, mean=[0.5] * 3, std=[0.2] * 3, num_classes=3, img_size=16)


def feed(folder, *, batch=16, workers=0, limit=0.05, rank=0, world=1, config=CONFIG):
    source = open_data(str(folder)).train
    return FileFeed(
        source,
        order=Order(length=len(source), batch_size=batch, seed=0, rank=rank, world=world),
        expand=augment(),
        encode=ImageEncoder(Framing(16, config=config)),
        device=torch.device("cpu"),
        workers=workers,
        bad_limit=limit,
    )


def epochs(reading, count):
    return [inputs for epoch in range(count) for inputs in reading.epoch(epoch)]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_workers_change_nothing_in_the_batches(folder):
    with_workers = feed(folder, workers=2)
    for epoch in (0, 1):
        assert_same(list(with_workers.epoch(epoch)), list(feed(folder).epoch(epoch)))
    with_workers.close()


def test_epoch_begun_in_its_middle_gives_the_rest(folder):
    assert_same(list(feed(folder).epoch(1, start=2)), list(feed(folder).epoch(1))[2:])
    assert list(feed(folder).epoch(1, start=3)) == []


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_out_what_one_would_take_and_mix_the_same_pairs(folder, world):
    whole = feed(folder, batch=17)
    parts = [feed(folder, batch=17, rank=rank, world=world) for rank in range(world)]
    for batch, *shares in zip(whole.epoch(0), *(part.epoch(0) for part in parts), strict=True):
        assert all(torch.equal(torch.cat([share[name] for share in shares]), batch[name]) for name in batch)
        expected = whole.expand(batch, strong=True)
        mixed = [part.expand(share, strong=True) for part, share in zip(parts, shares, strict=True)]
        for name in expected:
            torch.testing.assert_close(torch.cat([one[name] for one in mixed]), expected[name], rtol=0, atol=1e-6)


def test_resident_set_is_shared_out_alike():
    images, labels = torch.randint(0, 256, (21, 3, 16, 16), dtype=torch.uint8), torch.arange(21) % 3
    orders = [Order(length=21, batch_size=10, seed=0, rank=r, world=w) for r, w in [(0, 1), (0, 2), (1, 2)]]
    feeds = [ResidentFeed({"image": images, "target": labels}, order=one, expand=augment()) for one in orders]
    for batch, first, second in zip(*(one.epoch(2) for one in feeds), strict=True):
        assert (len(first["index"]), len(second["index"])) == (4, 6)
        assert all(torch.equal(torch.cat([first[name], second[name]]), batch[name]) for name in batch)


def test_bad_images_are_replaced_by_others_in_the_same_way_every_time(spoiled):
    first, second = feed(spoiled), feed(spoiled, workers=2)
    with pytest.warns(UserWarning, match="is skipped"):
        batches = epochs(first, 2)
    with pytest.warns(UserWarning, match="is skipped"):
        assert_same(epochs(second, 2), batches)
    second.close()
    assert first.bad == second.bad
    assert set(first.bad) == {"train/class0/000.png", "train/class1/001.png"}
    assert all(fault.kind == "truncated" for fault in first.bad.values())


def test_replacement_is_a_whole_image_with_its_own_label(spoiled):
    plain = AugmentConfig(crop="none")
    with pytest.warns(UserWarning, match="is skipped"):
        batches = list(feed(spoiled, config=plain).epoch(0))
    for batch in batches:
        images, labels = batch["image"], batch["target"]
        brightest = images.float().mean((2, 3)).argmax(1)  # the colour that tells the class
        assert torch.equal(brightest, labels)
        assert images.float().mean((1, 2, 3)).min() > 50


def test_random_crop_of_a_file_is_made_once(folder):
    config = AugmentConfig(crop="resized", scale=[0.25, 0.25], flip=0)
    source = open_data(str(folder)).train
    reading = FileFeed(
        source,
        order=Order(length=len(source), batch_size=16, seed=0),
        expand=class_augment(config, mean=[0.0] * 3, std=[1.0] * 3, num_classes=3, img_size=16),
        encode=ImageEncoder(Framing(16, config=config)),
        device=torch.device("cpu"),
        workers=0,
        bad_limit=0.05,
    )
    batch = next(iter(reading.epoch(0)))
    assert torch.equal(reading.expand(batch, strong=True)["image"], batch["image"].float() / 255)


def test_each_bad_image_is_warned_of_once(spoiled):
    reading = feed(spoiled)
    with pytest.warns(UserWarning, match="is skipped") as told:
        epochs(reading, 4)
    assert len(told) == 2


@pytest.mark.filterwarnings("ignore:.*is skipped")
@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_bad_images_stop_with_their_names(spoiled, workers):
    reading = feed(spoiled, limit=0.02, workers=workers)
    with pytest.raises(TooManyBad, match=r"2 of 50 images.*limit of 1: train/class.*raise data.bad_limit"):
        epochs(reading, 3)
    reading.close()


@pytest.mark.filterwarnings("ignore:.*is skipped")
@pytest.mark.parametrize("workers", [0, 1])
def test_set_that_is_gone_stops_with_a_plain_message(tmp_path, workers):
    reading = feed(png_folder(tmp_path / "pictures"), limit=1.0, workers=workers)
    (tmp_path / "pictures").rename(tmp_path / "elsewhere")
    with pytest.raises(TooManyBad, match=r"^20 images in a row.*does not exist.*still available") as stop:
        list(reading.epoch(0))
    assert "Traceback" not in str(stop.value)
    reading.close()


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_run_names_the_images_it_left_out(tmp_path):
    data = png_folder(tmp_path / "pictures", bad=1)
    train(str(data), out=tmp_path / "run", settings=settings(schedule__epochs=2), quiet=True)
    bad = json.loads((tmp_path / "run" / "bad_samples.json").read_text())
    assert set(bad) == {"train/class0/000.png", "val/class0/000.png"}
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["bad_samples"] == 2


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_too_many_bad_validation_images_stop_a_run(tmp_path):
    data = png_folder(tmp_path / "pictures", bad=3, train=200)
    with pytest.raises(TooManyBad, match="3 of 9 images"):
        train(str(data), out=tmp_path / "run", settings=settings(), quiet=True)


@pytest.mark.parametrize("crop", ["resized", "pad"])
def test_large_photographs_are_read_smaller_for_training_and_look_the_same(tmp_path, monkeypatch, crop):
    folder = tmp_path / "photographs"
    class_folders(folder, {"a": 3, "b": 3})
    for file in folder.rglob("*.jpg"):
        photograph(file)
    pixels = []

    def counted(self, image, box, original=Framing.image):
        pixels.append(image.shape[:2])
        return original(self, image, box)

    monkeypatch.setattr(Framing, "image", counted)
    given = {"data.img_size": 32, "augment.crop": crop, "data.workers": 0, "model.options": TINY}
    config = configure(None, given | {"data.resident": "never"})
    data, choice = open_data(str(folder)), choose_task("classify")
    config, spec = resolve(config, choice, data, torch.device("cpu"))
    parts = assemble(config, choice, data, spec, world=Alone(), device=torch.device("cpu"))
    reading = parts.feed
    (ours,) = reading.epoch(0)
    assert max(pixels) <= (240, 320)
    reading.loader = make_loader(_Reading(data.train, reading.loader.dataset.encode), 0, batch_sampler=reading.plan)
    (whole,) = reading.epoch(0)
    assert pixels[-1] == (480, 640)
    assert torch.equal(ours["key"], whole["key"])
    assert (ours["image"].float() - whole["image"].float()).abs().mean() < 1.5
    list(parts.validation.batches())
    assert pixels[-1] == (480, 640)  # what a finished model is shown is read whole


@pytest.mark.parametrize("ratio", [[0.75, 4 / 3], [0.25, 2.0], [1.0, 1.0]])
def test_no_crop_of_the_least_size_is_enlarged(ratio):
    config = AugmentConfig(crop="resized", scale=[0.3, 1.0], ratio=ratio)
    least = Framing(32, config=config).least
    boxes = [random_box(least, least, word * 7919, config) for word in range(2000)]
    sides = [min(right - left, bottom - top) for left, top, right, bottom in boxes]
    assert 32 <= min(sides) < 40
    assert Framing(32, shorter=36).least == 72


def photograph(file):
    """Write a large image that is smooth, as photographs are."""
    draws = np.random.default_rng(int(file.stem)).integers(0, 256, (15, 20, 3), dtype=np.uint8)
    Image.fromarray(draws).resize((640, 480), Image.Resampling.BICUBIC).save(file, quality=95)
