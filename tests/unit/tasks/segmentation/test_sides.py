"""Segmentation at a shorter and a longest side: training, metrics and predictions."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from sklearn.metrics import confusion_matrix
from torch import nn

import saccade
from saccade.building.build import load_model
from saccade.data.framing import at_once, unfit
from saccade.data.image import BadSample
from saccade.data.sides import SideFraming
from saccade.data.source import Sample
from saccade.data.spec import InputSpec
from saccade.data.validation import Validation
from saccade.deployment.bundle import Bundle
from saccade.deployment.writers import write_predictions
from saccade.runs.run import Run
from saccade.runs.weights import save_tensors
from saccade.settings import AugmentConfig, ConfigError, DataConfig, LossConfig
from saccade.tasks import Segment
from saccade.tasks.metric import PLACE
from saccade.tasks.opening import open_samples
from saccade.tasks.segmentation.data import MaskEncoder, largest_share
from saccade.tasks.segmentation.reader import SegmentOptions
from saccade.training.parallel import Alone
from saccade.training.recipes import configure
from saccade.training.setup import keeps_encoded
from saccade.training.validate import predict_shown
from support.mask_sets import make_odd_set

SIZES = ((61, 37), (40, 90), (33, 33), (57, 228))  # width and height
TASK = "segment:longest=96"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sides")
    data = make_odd_set(folder / "set", SIZES)
    settings = {"model.head": "fpn:width=16,inner=32", "keep.ema": None, "data.workers": 0, "optim.lr": 0.02}
    settings["keep.evaluate_every"] = 15
    run = saccade.train(
        str(data), task=TASK, model="resnet10t", epochs=15, batch_size=3, img_size=32, recipe="segment",
        settings=settings, out=str(folder / "run"), quiet=True,
    )  # fmt: skip
    return data, run


def by_sklearn(data, masks):
    """Return the mean IoU of written masks."""
    total = np.zeros((3, 3), dtype=np.int64)
    for number in range(4):
        truth, answer = (np.asarray(Image.open(root / f"{number}.png")) for root in (data / "masks" / "val", masks))
        assert answer.shape == truth.shape
        total += confusion_matrix(truth[truth < 255], answer[truth < 255], labels=range(3))
    return float(np.mean(total.diagonal() / (total.sum(0) + total.sum(1) - total.diagonal())))


def test_validation_and_evaluation_are_those_of_the_written_masks(trained, tmp_path):
    data, run = trained
    found = saccade.predict(run.path, data / "images" / "val", batch_size=3)
    write_predictions(found, out=tmp_path / "answers.jsonl", masks=tmp_path / "masks")
    want = by_sklearn(data, tmp_path / "masks")
    assert run.score == pytest.approx(want, abs=1e-3)
    assert saccade.evaluate(run.path, quiet=True).metrics()["miou"] == pytest.approx(want, abs=1e-3)
    assert want > 0.4


@pytest.mark.parametrize(
    ("more", "extra"),
    [
        ("test=slide,crop=24", {"asked": {"test": "slide"}, "crop": 24}),
        ("scales=[0.75,1.0],flip=true", {"asked": {"scales": [0.75, 1.0], "flip": True}}),
        ("longest=40", {"longest": 40}),
    ],
)
def test_test_modes_of_a_finished_run_are_those_of_its_files(trained, tmp_path, more, extra):
    data, run = trained
    found = saccade.evaluate(run.path, task=f"segment:{more}", quiet=True).metrics()["miou"]
    assert found != run.score
    changed = shutil.copytree(run.path, tmp_path / "run")
    edit_extra(changed / "model.safetensors", extra)
    answers = saccade.predict(changed, data / "images" / "val")
    write_predictions(answers, out=tmp_path / "answers.jsonl", masks=tmp_path / "masks")
    assert found == pytest.approx(by_sklearn(data, tmp_path / "masks"), abs=1e-3)


def edit_extra(file, extra):
    """Change what a file of weights says of decoding."""
    with safe_open(file, framework="pt") as opened:
        about = json.loads(opened.metadata()["saccade"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, it is no mapping
    (about.get("spec") or about)["extra"].update(extra)
    save_tensors(file, tensors, metadata={"saccade": json.dumps(about)})


def test_a_run_of_squares_is_tested_at_its_shorter_side(trained, tmp_path):
    _, run = trained
    squares = shutil.copytree(run.path, tmp_path / "run")
    edit_extra(squares / "model.safetensors", {"longest": None})
    (squares / "config.yaml").write_text((squares / "config.yaml").read_text().replace(TASK, "segment"))
    fitted = saccade.evaluate(squares, quiet=True).metrics()["miou"]
    assert fitted != run.score
    assert saccade.evaluate(squares, task=TASK, quiet=True).metrics()["miou"] == run.score
    assert saccade.evaluate(run.path, task="segment:longest=null", quiet=True).metrics()["miou"] == fitted


def test_exports_say_that_they_answer_in_squares_and_views_see_squares(trained):
    data, run = trained
    model, spec = load_model(run.path)
    bundle = Bundle.of(model, spec.in_square(), name="name")
    assert bundle.to_dict()["answers_in"] == "square"
    opened = Bundle.from_json(bundle.to_json(), source="name").spec
    assert opened.framing.canvas(37, 61) == (32, 32)
    assert "answers_in" not in Bundle.of(model, InputSpec(("a",), 3, 8, [0.5], [0.5]), name="name").to_dict()
    files = [data / "images" / "val" / f"{number}.jpg" for number in (0, 3)]
    assert [sample.pixels.shape[:2] for sample in saccade.explain(run.path, files).samples] == [(32, 32), (32, 32)]


def test_validation_has_few_shapes_and_every_sample_once(trained):
    data, run = trained
    _, spec = load_model(run.path)
    _, opened = open_samples("segment", DataConfig(path=str(data)))
    encode = Segment.codec(spec).encoder()
    more = {"framing": spec.framing, "batch_size": 4, "device": torch.device("cpu")}
    for keep in (False, True):
        batches = list(Validation(opened.val, encode=encode, keep=keep, **more).batches())
        assert [tuple(batch["image"].shape[2:]) for batch in batches] == [(32, 64), (96, 32), (32, 32)]
        assert [batch["place"].tolist() for batch in batches] == [[0], [1, 3], [2]]


def test_pages_show_the_whole_image(trained, tmp_path):
    data, run = trained
    answers = saccade.predict(run.path, data / "images" / "val")
    write_predictions(answers, out=tmp_path / "answers.jsonl", masks=tmp_path / "masks")
    kept = Run(run.path).predictions()
    assert kept["small"].shape == (4, 192, 192)
    for number, place in enumerate(kept["shown"].tolist()):
        mask = np.asarray(Image.open(tmp_path / "masks" / f"{place}.png"))
        assert (unfit(kept["small"][number].numpy(), mask.shape) == mask).mean() > 0.9


def test_an_image_that_is_gone_by_the_end_is_blank_on_pages(trained):
    data, run = trained
    model, spec = load_model(run.path)
    task = Segment(model, options=SegmentOptions(longest=96), keep_masks=True)
    _, opened = open_samples("segment", DataConfig(path=str(data)))
    places = torch.tensor([2, 0, 3])
    kept = {"shown": torch.tensor([0, 1, 2])}
    metrics = SimpleNamespace(spec=spec, columns={PLACE: places}, predictions=lambda: kept)

    class Source:
        def sample(self, place):
            if place == 0:
                raise BadSample("0.jpg", "the file does not exist", "missing")
            return opened.val.sample(place)

    def answer(batch):
        return task.answer({**batch, "image": batch["image"].float()})

    found = predict_shown(task, metrics, Source(), answer)
    assert found["small"].shape == (3, 192, 192)
    assert [bool(one.any()) for one in found["small"]] == [True, False, True]


@pytest.mark.parametrize("shape", [(32, 96), (96, 32), (32, 32)])
def test_sliding_windows_have_the_image_size_by_default(shape):
    seen = []

    class Model(nn.Module):
        def forward(self, x):
            seen.append(tuple(x.shape[-2:]))
            return x[:, :2]

    images = torch.rand(1, 3, *shape)
    found = Segment(Model(), options=SegmentOptions(test="slide", longest=96)).predict_logits({"image": images})
    torch.testing.assert_close(found, images[:, :2])
    assert set(seen) == {(32, 32)}


def test_models_of_one_size_are_refused():
    model = nn.Module()
    model.side = 64
    with pytest.raises(ConfigError, match="squares of 64 pixels only"):
        Segment(model, options=SegmentOptions(longest=96))


def test_longest_side_shorter_than_the_shorter_one_is_refused():
    spec = InputSpec(("a", "b"), 3, 64, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True, "longest": 32})
    with pytest.raises(ValueError, match="longest=32 is less than the image size 64"):
        Segment.check_spec(spec)


def test_training_crops_follow_the_options():
    spec = InputSpec(("a", "b", "c"), 3, 64, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True, "longest": 256})
    spec.extra |= {"crop": 24, "scale": [0.5, 2.0], "uniform_scale": True, "cat_max_ratio": 0.75}
    codec, augment = Segment.codec(spec), AugmentConfig(crop="none", ratio=(1.0, 1.0), flip=1.0)
    encode = codec.encoder(augment)
    assert (encode.framing.crop, encode.framing.scale, encode.framing.uniform_scale) == (24, (0.5, 2.0), True)
    image = np.zeros((64, 96, 3), np.uint8)
    image[..., 0] = np.arange(96) * 2
    mask = np.zeros((64, 96), np.int16)
    mask[:, 80:], mask[:, 70:72] = 1, 2
    sample = Sample({"image": image}, {"mask": mask}, "name")
    some = encode.collate([encode(sample, word) for word in range(40)])
    found = codec.expander(augment, LossConfig(), device=torch.device("cpu"))(
        some | {"key": torch.arange(40)}, strong=True
    )
    assert found["image"].shape == (40, 3, 24, 24)
    torch.testing.assert_close(found["mask"].flip(2), some["mask"].long())  # flipped with the image
    red = (some["image"][:, 0].flip(2).float() / 255 - 0.5) / 0.5
    torch.testing.assert_close(found["image"][:, 0], red)


def test_a_crop_of_one_class_is_moved_to_where_there_are_several():
    mask = np.zeros((64, 256), np.int16)
    mask[:, 128:] = np.arange(128) // 4 % 2  # only the right half has two classes
    sample = Sample({"image": np.zeros((64, 256, 3), np.uint8)}, {"mask": mask}, "name")
    framing = SideFraming(64, longest=256, config=AugmentConfig(ratio=(1.0, 1.0)), crop=32, scale=(1.0, 1.0))

    def varied(ratio):
        encode = MaskEncoder(framing, cat_max_ratio=ratio)
        boxes = [encode.box(sample, (64, 256), word) for word in range(60)]
        assert all(box[3] - box[1] == 32 and box[0] >= 0 and box[2] <= 256 for box in boxes)
        return [largest_share(mask, box) < 0.75 for box in boxes], boxes

    (before, first), (after, second) = varied(1.0), varied(0.75)
    assert 20 < sum(before) < 40
    assert sum(after) > 57
    assert all(one == other for one, other, fine in zip(first, second, before, strict=True) if fine)
    assert largest_share(np.full((64, 64), -1), (0.0, 0.0, 64.0, 64.0)) == 1.0


def test_large_images_are_asked_few_at_once():
    assert at_once((3, 1024, 1024)) > 1000
    assert at_once((3, 2048, 2048)) == 4
    assert at_once((3, 4000, 3000)) == 1


def test_samples_that_differ_in_each_epoch_are_not_kept_on_the_device():
    spec = InputSpec(("a", "b"), 3, 64, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True, "longest": 256})
    config, more = configure("segment", {}), {"world": Alone(), "device": torch.device("cpu")}
    assert keeps_encoded(config, spec.in_square(), 10, **more)
    assert not keeps_encoded(config, spec, 10, **more)
