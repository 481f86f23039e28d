"""Detection at a shorter and a longest side: batches of few shapes, training, and average precision of the files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import saccade
from saccade.building.build import load_model
from saccade.data.draws import GroupOrder
from saccade.data.sides import canvas_groups
from saccade.data.source import Sample
from saccade.data.spec import InputSpec
from saccade.deployment.writers import write_predictions
from saccade.settings import AugmentConfig, DataConfig, LossConfig
from saccade.tasks import Detect
from saccade.tasks.detection.detector import read_answers
from saccade.tasks.opening import open_samples
from saccade.training.loop import Loop
from support.coco import coco_stats
from support.trainings import assert_same_end

SIZES = ((80, 60), (60, 80), (100, 60), (64, 64), (120, 60), (60, 110))  # width and height
HEAD = "atss:width=16,depth=1"


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Images of six sizes, with one bright rectangle each."""
    root = tmp_path_factory.mktemp("objects")
    for part, count in (("train", 12), ("val", 6)):
        (root / "images" / part).mkdir(parents=True)
        images, annotations = [], []
        for number in range(count):
            draws = np.random.default_rng(number + 100 * (part == "val"))
            width, height = SIZES[number % 6]
            pixels = draws.integers(0, 60, (height, width, 3)).astype(np.uint8)
            wide, high = (int(side) for side in draws.integers(20, 40, 2))
            left, top = int(draws.integers(0, width - wide)), int(draws.integers(0, height - high))
            label = number % 2
            pixels[top : top + high, left : left + wide, label] += 180
            Image.fromarray(pixels).save(root / "images" / part / f"{number}.png")
            name = f"images/{part}/{number}.png"
            images.append({"id": number, "file_name": name, "width": width, "height": height})
            box = {"bbox": [left, top, wide, high], "area": wide * high, "category_id": label + 1, "iscrowd": 0}
            annotations.append({"id": number + 1, "image_id": number, **box})
        whole = {
            "images": images,
            "annotations": annotations,
            "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
        }
        (root / f"{part}.json").write_text(json.dumps(whole))
    return root


@pytest.fixture(scope="module")
def trained(objects, tmp_path_factory):
    settings = {"model.head": HEAD, "keep.ema": None, "data.workers": 0, "optim.lr": 3e-3}
    settings["keep.evaluate_every"] = 14
    return saccade.train(
        str(objects), task="detect:longest=96,scale=[0.8,1]", model="resnet10t", recipe="detect", epochs=14,
        batch_size=4, img_size=64, settings=settings, out=str(tmp_path_factory.mktemp("run") / "run"), quiet=True,
    )  # fmt: skip


def test_average_precision_is_that_of_the_predicted_file(objects, trained, tmp_path):
    found = saccade.predict(trained.path, objects / "images" / "val", batch_size=5)
    write_predictions(found, out=tmp_path / "p.json", form="coco")
    written, whole = (json.loads(file.read_text()) for file in (tmp_path / "p.json", objects / "val.json"))
    ids = {one["file_name"].split("/")[-1]: one["id"] for one in whole["images"]}
    known = {one["id"]: ids[one["file_name"].split("/")[-1]] for one in written["images"]}
    said = [one | {"image_id": known[one["image_id"]]} for one in written["annotations"]]
    stats = coco_stats(whole, said, "bbox")
    assert stats[0] > 0.2
    assert trained.score == pytest.approx(stats[0], abs=1e-3)
    again = saccade.evaluate(trained.path, quiet=True).metrics()
    assert again["ap"] == pytest.approx(stats[0], abs=1e-3)
    assert again["ap_medium"] == pytest.approx(stats[4], abs=1e-3)
    assert saccade.evaluate(trained.path, task="detect:longest=64", quiet=True).metrics()["ap"] != again["ap"]


def test_training_batches_have_one_shape_each_and_few_in_all(objects, trained):
    _, spec = load_model(trained.path)
    codec = Detect.codec(spec)
    _, data = open_samples("detect", DataConfig(path=str(objects)))
    augment = AugmentConfig(crop="none", ratio=(1.0, 1.0), flip=0.5)
    encode, targets = codec.encoder(augment), data.train.targets
    expand = codec.expander(augment, LossConfig(), device=torch.device("cpu"))
    groups = canvas_groups(spec.framing, targets)
    assert len(groups.unique()) == 3  # 64 x 96, 96 x 64 and 64 x 64
    order = GroupOrder(length=12, batch_size=2, seed=0, groups=groups)
    shapes, seen = [], []
    for epoch in range(6):
        index, _ = order.epoch(epoch)
        seen += index.tolist()
        for part in order.batches(start=0):
            places = index[part].tolist()
            samples = [encode(data.train.sample(place), 1000 * epoch + place) for place in places]
            batch = expand(encode.collate(samples) | {"key": torch.tensor(places)}, strong=True)
            assert batch["image"].shape[0] == 2
            shapes.append(tuple(batch["image"].shape[2:]))
            scale = (batch["boxes"][..., 2:] - batch["boxes"][..., :2])[batch["labels"] >= 0]
            assert (scale > 10).all()
    assert sorted(seen) == sorted(list(range(12)) * 6)
    assert len(set(shapes)) <= 4
    assert sum(tall != wide for tall, wide in shapes) > len(shapes) / 2


def test_boxes_of_a_flipped_batch_lie_on_their_objects(objects, trained):
    _, spec = load_model(trained.path)
    codec = Detect.codec(spec)
    _, data = open_samples("detect", DataConfig(path=str(objects)))
    augment = AugmentConfig(crop="none", ratio=(1.0, 1.0), flip=1.0)
    encode = codec.encoder(augment)
    expand = codec.expander(augment, LossConfig(), device=torch.device("cpu"))
    for place in range(6):
        batch = encode.collate([encode(data.train.sample(place), place)]) | {"key": torch.tensor([place])}
        found = expand(batch, strong=True)
        image, label = found["image"][0], int(found["labels"][0, 0])
        left, top, right, bottom = (round(float(side)) for side in found["boxes"][0, 0])
        bright = image[label] > image[label].mean()
        assert bright[max(top, 0) + 2 : bottom - 2, max(left, 0) + 2 : right - 2].float().mean() > 0.95


def test_boxes_of_crops_end_at_the_crop_in_a_padded_batch():
    spec = InputSpec(("a",), 3, 64, [0.5] * 3, [0.5] * 3, task="detect")
    spec.extra |= {"fit": True, "frame": "image", "longest": 128, "scale": [2.0, 2.0]}
    encode = Detect.codec(spec).encoder(AugmentConfig(crop="none", ratio=(1.0, 1.0)))
    task = Detect(torch.nn.Identity())
    task.spec = spec

    def sample(width, height, word):
        boxes = np.array([[0, 0, width, height], [0, 0, 3, 3]], np.float32)
        target = {"boxes": boxes, "labels": np.array([0, 0]), "crowd": np.zeros(2, bool)}
        return encode(Sample({"image": np.zeros((height, width, 3), np.uint8)}, target, "name"), word)

    def objects(*samples):
        found = task.objects(encode.collate(list(samples)))
        return [boxes[labels >= 0] for boxes, labels in zip(found.boxes, found.labels, strict=True)]

    samples = [sample(96, 64, 1), sample(64, 96, 2), sample(128, 64, 3)]
    together, alone = objects(*samples), [objects(one)[0] for one in samples]
    assert [boxes[0].tolist() for boxes in alone][:2] == [[0, 0, 96, 64], [0, 0, 64, 96]]
    assert sum(map(len, alone)) < 6  # some small objects are hidden
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other)


def test_canvases_of_few_candidates_have_as_many_rows_as_others():
    few, many = (torch.rand(2, count, 6) for count in (3, 30))
    few[..., 5], many[..., 5] = 0, 0
    small, large = (read_answers(output, overlap=1.0, least=0.0, kept=10) for output in (few, many))
    assert small.rows().shape == large.rows().shape == (2, 10, 6)
    assert (small.labels >= 0).sum(1).tolist() == [3, 3]
    assert (small.scores[:, 3:] == 0).all()


def test_batches_are_not_sorted_where_images_are_squares_or_of_unknown_size(objects, trained):
    _, spec = load_model(trained.path)
    _, data = open_samples("detect", DataConfig(path=str(objects)))
    targets = data.train.targets
    assert canvas_groups(spec.in_square().framing, targets) is None
    assert canvas_groups(spec.framing, replace(targets, sizes=np.zeros((0, 2), np.int64))) is None
    assert canvas_groups(spec.framing, targets.subset([3, 1])).tolist() == pytest.approx([1, 2 / 3])


def test_a_killed_run_ends_as_the_one_that_was_not(objects, tmp_path, monkeypatch):
    more = {"model.head": HEAD, "keep.ema": None, "keep.every_steps": 2, "engine.threads": 1, "data.workers": 0}
    given = {"task": "detect:longest=96,scale=[0.8,1]", "model": "resnet10t", "recipe": "detect", "epochs": 2}
    given |= {"batch_size": 4, "img_size": 64, "settings": more, "quiet": True}
    whole = saccade.train(str(objects), out=tmp_path / "whole", **given)

    def killed(loop):
        if loop.step == 4:
            raise KeyboardInterrupt
        before(loop)

    before = Loop._checkpoint_or_stop
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_checkpoint_or_stop", killed)
        with pytest.raises(KeyboardInterrupt):
            saccade.train(str(objects), out=tmp_path / "killed", **given)
    saccade.train(resume=tmp_path / "killed", quiet=True)
    assert_same_end(tmp_path / "killed", whole.path)
