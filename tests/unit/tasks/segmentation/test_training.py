import base64
import io
import json
import shutil

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import saccade
from saccade.building.build import build_model, build_task
from saccade.building.loading import open_model
from saccade.data.spec import InputSpec
from saccade.deployment.predictor import open_predictor
from saccade.deployment.writers import write_predictions
from saccade.plugins import attached
from saccade.runs.run import Run
from saccade.runs.scores import read_scores
from saccade.settings import AugmentConfig, ConfigError, LossConfig, ModelConfig, ScheduleConfig
from saccade.settings.recipes import list_recipes
from saccade.tasks import Segment
from saccade.tasks.opening import choose_task
from saccade.tasks.segmentation.augment import CropAugment
from saccade.tasks.segmentation.drawing import encode_places, mask_image, overlay
from saccade.tasks.segmentation.testing import answer_scales, answer_sliding
from saccade.training.optim import rate_at
from saccade.training.recipes import configure
from support.masks import make_masks
from support.serving import make_app, running

HEAD = "fpn:width=16,inner=32"


def make_spec(outputs=("a", "b", "c"), side=32, **extra):
    return InputSpec(tuple(outputs), 3, side, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True, **extra})


def test_sliding_windows_cover_everything_and_average():
    asked = []

    def ask(images):
        asked.append(tuple(images.shape[-2:]))
        return images[:, :2] * 1.0

    images = torch.randn(1, 3, 20, 33)
    assert torch.allclose(answer_sliding(ask, images, window=12), images[:, :2], atol=1e-6)
    assert set(asked) == {(12, 12)}
    assert len(asked) == 2 * 4


def test_mirrored_and_scaled_answers_are_brought_back():
    def ask(images):
        return torch.cat([images[:, :1], -images[:, :1]], 1)

    smooth = torch.linspace(-2, 2, 32)[None, None, None, :].expand(1, 3, 16, 32)
    found = answer_scales(ask, smooth, scales=[0.5, 1.0, 1.5], flip=True)
    assert found.shape == (1, 2, 16, 32)
    assert (found.argmax(1)[0, :, :14] == 1).all()
    assert (found.argmax(1)[0, :, 18:] == 0).all()
    assert torch.allclose(found.exp().sum(1), torch.ones(1, 16, 32), atol=1e-4)


def test_options_say_how_a_model_is_asked():
    asked = []

    class Asked(nn.Module):
        def forward(self, images):
            asked.append(tuple(images.shape[-2:]))
            return images[:, :2]

    task = Segment(Asked(), options=choose_task("segment:test=slide,crop=16,scales=[1.0,1.5],flip=true").options)
    assert task({"image": torch.randn(1, 3, 24, 24)})["output"].shape == (1, 2, 24, 24)
    assert set(asked) == {(16, 16)}
    assert len(asked) == 2 * (4 + 9)


def test_crops_move_image_and_mask_alike():
    mask = torch.randint(0, 2, (6, 8, 8), generator=torch.Generator().manual_seed(0))
    mask = mask.repeat_interleave(12, 1).repeat_interleave(12, 2)
    batch = {"image": (mask * 255).to(torch.uint8)[:, None].repeat(1, 3, 1, 1), "mask": mask.to(torch.int16)}
    augment = CropAugment(AugmentConfig(flip=0.5), crop=64, scale=[0.5, 2.0], mean=[0.0] * 3, std=[1.0] * 3)
    found = augment({**batch, "key": torch.arange(6) * 7919})
    counted = found["mask"] >= 0
    agree = ((found["image"][:, 0] > 0.5).long() == found["mask"])[counted]
    assert found["mask"].shape == (6, 64, 64)
    assert agree.float().mean() > 0.995
    assert torch.equal(found["image"], augment({**batch, "key": torch.arange(6) * 7919})["image"])
    assert not torch.equal(found["image"], augment({**batch, "key": torch.arange(6) * 7919 + 1})["image"])


def test_rate_falls_by_a_power_after_a_rise_in_steps():
    schedule = ScheduleConfig(epochs=10, curve="poly", power=0.9, warmup_steps=10, warmup_lr=0.0, min_lr=0.0)
    rates = [rate_at(step, steps_per_epoch=10, peak=1.0, schedule=schedule) for step in range(101)]
    assert rates[4] == pytest.approx(5 / 11)
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5**0.9)
    assert rates[100] == 0
    short = ScheduleConfig(epochs=5, warmup_steps=1500)
    assert rate_at(0, steps_per_epoch=1, peak=1.0, schedule=short) > 0.4  # a fifth of it all at most


def test_recipes_of_papers_are_sized_down_by_epochs():
    papers = [one for one in list_recipes() if one.startswith("segment_") and one != "segment_finetune"]
    assert len(papers) >= 4
    for name in papers:
        config = configure(name, {})
        assert config.schedule.steps in (40_000, 80_000, 160_000)
        assert config.model.head is not None
        assert config.task == "segment:longest=2048,cat_max_ratio=0.75,uniform_scale=true"
        assert configure(name, {"schedule.epochs": 3}).schedule.steps is None
    swin = configure("segment_swin", {})
    assert (swin.optim.lr, swin.optim.weight_decay, swin.schedule.warmup_steps) == (6e-5, 0.01, 1500)
    assert (swin.schedule.steps, swin.model.drop_path) == (160_000, 0.2)


@pytest.mark.parametrize("plugin", ["drloc", "broadcast:layers=all,spare_pyramid=true"])
def test_plugins_work_inside_a_segmenter(plugin):
    spec, config = make_spec(side=64), ModelConfig(name="vit_tiny_patch16_224", plugins=[plugin], head=HEAD)
    model = build_model(config, spec, seed=0)
    task = build_task(model, choose_task("segment"), config, LossConfig(), spec, seed=0).train()
    result = task({"image": torch.randn(2, 3, 64, 64), "mask": torch.randint(-1, 3, (2, 64, 64))})
    result["loss"].backward()
    if plugin == "drloc":
        assert result["localization"] > 0
        read = {"image": torch.randn(1, 3, 64, 64), "mask": torch.zeros(1, 64, 64, dtype=torch.int16)}
        assert task.eval().answer(read)["mask"].shape == (1, 64, 64)  # masks as files are read
        assert task.weight == 0.01  # as published for ViT
        return
    paths = [name for name, module in model.named_modules() if type(module).__name__ == "Broadcast"]
    touched = {int(path.split("blocks.")[1].split(".")[0]) for path in paths if "blocks." in path}
    assert len(attached(model)) == 1
    assert touched.isdisjoint({2, 5, 8, 11})
    assert len(paths) == 8


def test_balanced_weights_are_by_pixels():
    spec = make_spec(pixels=[900, 100, 0])
    task = Segment.build(nn.Identity(), spec, loss=LossConfig(class_weights="balanced"))
    first, second, third = task.class_weights.tolist()
    assert second == pytest.approx(3 * first)
    assert third == 0
    with pytest.raises(ConfigError, match="has 2 numbers, the data has 3 classes"):
        Segment.build(nn.Identity(), spec, loss=LossConfig(class_weights=[1.0, 2.0]))


def test_options_that_make_no_sense_are_refused():
    for text in ("scale=[2,1]", "scales=[]", "crop=3", "aux=-1", "test=sliding"):
        with pytest.raises(ConfigError, match="the task"):
            choose_task(f"segment:{text}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segment")
    data = make_masks(folder / "set")
    settings = {"model.head": HEAD, "keep.ema": None, "data.workers": 0, "augment.jitter": 0.1}
    run = saccade.train(
        str(data),
        task="segment:scale=[0.8,1.25]",
        model="resnet10t",
        epochs=2,
        batch_size=3,
        img_size=40,
        out=folder / "run",
        device="cpu",
        settings=settings,
        quiet=True,
    )
    return data, run


def test_run_holds_scores_report_and_model(trained):
    _, run = trained
    assert run.metric == "miou"
    scores = read_scores(Run(run.path).scores_file)
    assert scores.columns["counts"].shape == (2, 3, 3)
    assert scores.columns["counts"][:, 1].sum() == 2 * 40 * 32  # every pixel of whole images, none of the grey
    assert scores.metrics["miou"].combine(scores.columns) == pytest.approx(run.score)
    page = (run.path / "report.html").read_text()
    for words in ("Worst, typical and best images", "Class by class", "Confusions between classes"):
        assert words in page


def test_predict_writes_masks_of_the_images_size_and_overlays(trained, tmp_path):
    data, run = trained
    predictions = saccade.predict(run.path, data / "images" / "val", keep=True)
    write_predictions(predictions, out=tmp_path / "p.jsonl", draw=tmp_path / "drawn", masks=tmp_path / "masks")
    mask = Image.open(tmp_path / "masks" / "0.png")
    assert (mask.mode, mask.size) == ("P", (40, 32))
    assert set(np.unique(np.array(mask))) <= {0, 1, 2}
    assert (tmp_path / "masks" / "classes.txt").read_text() == "class 0\nclass 1\nclass 2\n"
    assert len(list((tmp_path / "drawn").iterdir())) == 2
    shares = np.bincount(np.array(mask).ravel(), minlength=3) / 1280
    assert f'"area": {round(float(shares.max()), 6)}' in (tmp_path / "p.jsonl").read_text().splitlines()[0]


def test_masks_of_a_classifier_are_refused(tmp_path):
    from saccade.deployment.predict import Predictions
    from saccade.tasks import Classify

    nothing = Predictions((one for one in ()), Classify, InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3))
    with pytest.raises(ValueError, match="the task classify predicts no masks"):
        write_predictions(nothing, masks=tmp_path / "masks")


def test_weights_of_a_segmenter_start_another_for_other_classes(trained):
    _, run = trained
    spec = make_spec(("x", "y"), side=40)
    model = build_model(ModelConfig(name="resnet10t", head=HEAD, checkpoint=str(run.path)), spec, seed=1)
    own, other = model.state_dict(), saccade.load_model(run.path)[0].state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own if not name.startswith("classifier"))
    assert own["classifier.1.weight"].shape[0] == 2
    assert any("classifier" in note for note in spec.notes)


def test_masks_are_told_exactly_to_browsers_and_files():
    mask = np.array([[0, 1], [300, 2]], np.int16)
    read = np.array(Image.open(io.BytesIO(encode_places(mask)))).astype(int)
    assert (read[..., 0] + 256 * read[..., 1] == mask).all()
    assert mask_image(mask).mode.startswith("I")
    small = np.array([[0, 1], [-1, 2]], np.int16)
    assert np.array(mask_image(small)).tolist() == [[0, 1], [255, 2]]
    shown = overlay(np.full((2, 2, 3), 100, np.uint8), small)
    assert (shown[1, 0] == 100).all()
    assert not (shown[0, 0] == 100).all()


@pytest.mark.parametrize(("name", "view"), [("glnet_nano", "slots"), ("nommer_tiny", "nomination")])
def test_maps_of_context_are_shown_inside_a_segmenter(name, view):
    tiny = {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "cnn_reduction": 2, "window_size": 4}
    spec, options = make_spec(side=64), tiny if name == "nommer_tiny" else {"depths": [1, 1, 1]}
    model = build_model(ModelConfig(name=name, head=HEAD, options=options), spec, seed=0).eval()
    image = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    found = saccade.explain(model, [image], views=[view], shape=spec).samples[0].views[0]
    assert found.absent is None
    assert any(figure.pixels is not None for figure in found.figures)


def test_attention_inside_a_segmenter_is_shown_by_head():
    spec, options = make_spec(side=64), {"depth": 4, "num_heads": 2, "embed_dim": 16}
    model = build_model(ModelConfig(name="vit_tiny_patch16_224", head=HEAD, options=options), spec, seed=0).eval()
    image = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
    view = saccade.explain(model, [image], views=["attention"], heads="all", shape=spec).samples[0].views[0]
    assert [figure.layer for figure in view.figures] == [f"backbone.blocks.{n}.attn" for n in range(4)]
    assert all([one["head"] for one in figure.numbers["heads"]] == [0, 1] for figure in view.figures)


def test_everyone_asks_a_trained_model_as_its_validation_did(trained, tmp_path):
    """By windows and mirrored, also where the weights lie alone; another way is asked for by `--task`."""
    data, _ = trained
    way = "segment:test=slide,crop=16,flip=true"
    settings = {"model.head": HEAD, "data.workers": 0, "augment.jitter": 0.0}
    run = saccade.train(
        str(data), task=way, model="resnet10t", epochs=1, batch_size=3, img_size=40, out=tmp_path / "run",
        device="cpu", settings=settings, quiet=True,
    )  # fmt: skip
    alone = tmp_path / "elsewhere" / "model.safetensors"
    alone.parent.mkdir()
    shutil.copy(run.path / "model.safetensors", alone)
    images = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    loaded = open_model(run.path)
    whole, asked = (
        Segment.build(loaded.model, loaded.spec, options=choose_task(one).options).eval() for one in ("segment", way)
    )
    with torch.no_grad():
        plain, wanted = (task({"image": loaded.normalize(images)})["output"].numpy() for task in (whole, asked))
    assert np.abs(plain - wanted).max() > 1e-3
    for target in (run.path, alone):
        assert np.allclose(open_predictor(target).outputs(images), wanted, atol=1e-6)

    def miou(target, **options):
        found = saccade.evaluate(target, data=str(data), quiet=True, **options)
        return next(iter(found.runs.values())).metrics["miou"].value

    assert miou(run.path) == miou(alone) == run.score != miou(alone, task="segment:test=whole,flip=false")


def test_a_file_that_asks_in_ways_there_are_not_is_refused():
    for asked in (3, {"loss": "ce"}, {"test": "code"}, {"scales": [1.0] * 17}, {"scales": ["x"]}, {"flip": "x"}):
        with pytest.raises(ValueError, match=r"asked|scales"):
            Segment.check_spec(make_spec(asked=asked))
    Segment.check_spec(make_spec(asked={"flip": True, "scales": [0.5, 1.0]}))


def test_recipe_alone_trains_a_segmenter(trained, tmp_path):
    data, _ = trained
    more = {"data.workers": 0, "model.options": {"depths": [1, 1, 1]}, "model.head": HEAD, "optim.batch_size": 3}
    run = saccade.train(
        str(data),
        recipe="segment",
        epochs=1,
        img_size=40,
        out=tmp_path / "run",
        device="cpu",
        settings=more,
        quiet=True,
    )
    assert Run(run.path).config().task == "segment"
    assert 0 <= run.score <= 1


def test_server_tells_the_mask_of_the_image_as_it_was_sent(trained):
    _, run = trained
    file = io.BytesIO()
    Image.new("RGB", (60, 24), (230, 60, 30)).save(file, "PNG")
    with running(make_app(open_predictor(run.path), explained=False)) as address:
        told = httpx.post(f"{address}/predict", files={"file": ("a.png", file.getvalue())}).json()
        assert httpx.get(f"{address}/page/masks.js").status_code == 200
    mask = told["mask"]
    read = np.array(Image.open(io.BytesIO(base64.b64decode(mask["png"]))))
    assert (mask["width"], mask["height"]) == (60, 24)
    shares = np.bincount(read[..., 0].ravel(), minlength=3) / read[..., 0].size
    assert [told["classes"][0]["area"], told["rows"][0]["area"]] == pytest.approx([shares.max()] * 2, abs=1e-6)
    assert "probability" not in told["rows"][0]
    assert told["outputs"] == ["class 0", "class 1", "class 2"]
    assert len(mask["colours"]) == 3


def test_an_explained_image_has_the_areas_of_its_mask_for_an_answer(trained, tmp_path):
    data, run = trained
    found = saccade.explain(run.path, data / "images" / "val" / "0.png", views=["gradcam"])
    (predicted,) = saccade.predict(run.path, data / "images" / "val" / "0.png")
    said = found.samples[0].said
    assert said is not None
    assert said.record["answer"] == predicted.answer.record["answer"]
    page = found.save(tmp_path / "page")
    assert "makes no prediction" not in page.read_text()
    assert "Covers" in page.read_text()
    told = json.loads((tmp_path / "page" / "numbers.json").read_text())["samples"][0]["answer"]
    assert sum(one["area"] for one in told) == pytest.approx(1, abs=1e-4)
    assert "Next steps" in page.read_text()
