"""One call makes every view that applies, says why others do not, and refuses what cannot be done."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import saccade
from saccade.building.build import build_model
from saccade.data.image import BadSample
from saccade.data.spec import InputSpec
from saccade.explanation import opening
from saccade.explanation.explain import explain
from saccade.explanation.opening import read_images
from saccade.explanation.request import all_views
from saccade.models import CheckpointError
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig
from support.explaining import VIT, photo, views_of, vit

pytestmark = pytest.mark.usefixtures("few_answers")


def write_run(folder, classes=("cat", "dog", "fox"), *, plugins=(), seed=0):
    """Write the weights of a run that was never trained."""
    options = {key: value for key, value in VIT.items() if key != "img_size"}
    config = ModelConfig(name="vit_tiny_patch16_224", options=options, plugins=list(plugins))
    shape = InputSpec(classes, 3, 32, mean=[0.5] * 3, std=[0.5] * 3)
    folder.mkdir()
    save_model(folder / "model.safetensors", build_model(config, shape, seed=seed).state_dict(), config, shape)
    return folder


def test_run_is_explained_with_its_answer_and_all_views(tmp_path):
    run = write_run(tmp_path / "run", plugins=["broadcast:scale=true"])
    file = tmp_path / "cat.png"
    Image.fromarray(photo()).save(file)
    explanation = explain(run, file)
    (image,) = explanation.samples
    assert image.name == "cat.png"
    assert image.pixels.shape == (32, 32, 3)
    assert sum(share for _, share in image.answer) == pytest.approx(1)
    assert {name for name, _ in image.answer} == {"cat", "dog", "fox"}
    views = views_of(explanation)
    assert list(views) == list(all_views())
    assert all(
        views[key].absent is None and views[key].figures for key in ("gradcam", "attention", "density", "scaling")
    )
    assert all(views[key].absent for key in ("nomination", "slots", "slots-training", "cka"))


def test_answer_is_the_models_own():
    model = vit().eval()
    explanation = explain(model, photo(), views=["density"])
    pixels = torch.from_numpy(explanation.samples[0].pixels.copy()).permute(2, 0, 1)[None]
    with torch.no_grad():
        shares = model((pixels / 255 - 0.5) / 0.5).softmax(1)[0]
    assert explanation.samples[0].answer[0] == (
        f"class {shares.argmax()}",
        pytest.approx(shares.max().item(), rel=1e-4),
    )


@pytest.mark.parametrize(
    ("name", "present"),
    [("nommer_tiny", "nomination"), ("glnet_nano", "slots"), ("sot_7", "gradcam"), ("resnet10t", "gradcam")],
)
def test_views_that_apply_to_a_backbone(name, present):
    options = {"depths": (1, 1, 1, 1)} if name == "nommer_tiny" else {}
    options |= {} if name == "resnet10t" else {"img_size": 64}
    model = timm.create_model(name, num_classes=3, **options)
    shape = InputSpec(("a", "b", "c"), 3, 64, mean=[0.5] * 3, std=[0.5] * 3)
    views = views_of(explain(model, photo(), shape=shape))
    assert views[present].figures
    assert (views["density"].absent is not None) == (name == "resnet10t")
    assert "slots-training" not in views  # a module was not trained in a run


def test_model_is_left_as_it_was():
    model = vit().train()
    model.blocks[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    explain(model, photo())
    assert model.training
    assert not model.blocks[0].training
    assert model.blocks[1].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_several_images_of_every_kind_and_size(tmp_path):
    file = tmp_path / "a.jpg"
    Image.fromarray(photo(1)).save(file)
    given = [str(file), file, Image.fromarray(photo(2)).convert("L"), photo(3), photo(4)[..., 0]]
    explanation = explain(vit(), given * 2, views=["attention", "cka"])  # more than one batch
    assert [image.name for image in explanation.samples][:4] == ["a.jpg", "a.jpg", "image 3", "image 4"]
    assert len(explanation.samples) == 10
    one, again = explanation.samples[3].views[0], explanation.samples[8].views[0]
    assert one.figures[0].numbers == again.figures[0].numbers
    assert views_of(explanation)["cka"].figures[0].numbers["images"] == 10


def test_grey_images_for_a_grey_model():
    model = vit(in_chans=1)
    (image,) = explain(model, photo(), views=["density"]).samples
    assert image.pixels.shape == (32, 32, 3)
    assert (image.pixels[..., 0] == image.pixels[..., 2]).all()


def test_embedded_images_serve_cka():
    model = vit(in_chans=1)
    view = views_of(explain(model, photo(), views=["cka"], data="embedded", samples=12))["cka"]
    assert view.figures[0].numbers["images"] == 12


def test_layers_restrict_figures_and_rows():
    views = views_of(explain(vit(), [photo(i) for i in range(4)], layers=["blocks.1"]))
    assert [figure.layer for figure in views["attention"].figures] == ["blocks.1.attn"]
    assert [row["layer"] for row in views["density"].numbers["layers"]] == ["blocks.1.attn"]
    assert views["cka"].figures[0].numbers["rows"] == ["blocks.1"]


def test_second_model_answers_beside_and_is_compared(tmp_path):
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", seed=5)
    explanation = explain(one, [photo(i) for i in range(4)], views=["cka"], against=two)
    assert explanation.against == "two"
    assert [figure.key for figure in views_of(explanation)["cka"].figures] == ["cka-0", "cka-1"]
    answers = explain(two, photo(0), views=["density"]).samples[0].answer
    assert explanation.samples[0].other == [(name, pytest.approx(share)) for name, share in answers]


def test_models_of_other_classes_are_compared_by_layers_alone(tmp_path):
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", classes=("a", "b"))
    images = [photo(i) for i in range(4)]
    with pytest.raises(ValueError, match=r"3 and 2 classes.*--views cka"):
        explain(one, images, against=two)
    explanation = explain(one, images, views=["cka"], against=two)
    assert len(views_of(explanation)["cka"].figures) == 2
    assert explanation.samples[0].other == []


def test_weights_of_another_class_count_are_refused(tmp_path):
    run = write_run(tmp_path / "run")
    path = run / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["saccade"])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about["outputs"].append("owl")
    save_file(weights, path, metadata={"saccade": json.dumps(about)})
    with pytest.raises(CheckpointError, match="do not match the model and classes"):
        explain(run, photo())


def test_names_for_another_class_count_are_refused():
    shape = InputSpec(("a", "b"), 3, 32, mean=[0.5] * 3, std=[0.5] * 3)
    with pytest.raises(ValueError, match="has 4 outputs, but 2 classes"):
        explain(vit(), photo(), shape=shape)


def test_a_folder_stands_for_its_images_some_of_many_and_bad_ones_are_named(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    for name in ("b.png", "a.png", "inner/c.png", ".hidden.png"):
        Image.fromarray(photo()).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image by name")
    (tmp_path / "d.jpg").write_text("no image")
    with pytest.warns(UserWarning, match=r"left out: .*d\.jpg"):
        names = [name for name, _ in read_images([tmp_path, tmp_path / "a.png"])]
    assert names == ["a.png", "b.png", "inner/c.png", "a.png"]
    monkeypatch.setattr(opening, "MAX_IMAGES", 2)
    with pytest.warns(UserWarning, match="has 4 images; 2 of them, evenly spaced, are explained"):
        assert [name for name, _ in read_images(str(tmp_path))] == ["a.png", "inner/c.png"]


def test_bad_input_is_refused_in_plain_words(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not an image")
    for wrong, error, words in [
        (text, BadSample, "not an image"),
        (tmp_path / "none.png", BadSample, "does not exist"),
        (tmp_path, BadSample, "it is a directory"),
        ([], ValueError, "at least one"),
        (np.zeros((4, 4, 3)), ValueError, "uint8"),
        (3.5, TypeError, "images are float; give files"),
    ]:
        with pytest.raises(error, match=words):
            explain(vit(), wrong)
    with pytest.raises(ValueError, match="did you mean 'attention'"):
        explain(vit(), photo(), views=["atention"])
    with pytest.raises(ValueError, match=r"no layer 'blocks.7'.*close matches: blocks"):
        explain(vit(), photo(), layers=["blocks.7"])
    with pytest.raises(ValueError, match="no view has a figure of norm"):
        explain(vit(), photo(), layers=["norm"], views=["attention"])
    with pytest.raises(ValueError, match="does not belong to a run"):
        explain(vit(), photo(), data="run")
    with pytest.raises(ValueError, match="pass shape="):
        explain(nn.Conv2d(3, 4, 3), photo())
    with pytest.raises(CheckpointError, match="does not exist"):
        explain(tmp_path / "missing", photo())


@pytest.mark.parametrize("name", ["glnet_nano", "nommer_tiny"])
def test_each_image_passes_once_and_once_more_with_gradients(name):
    options = {"depths": (1, 1, 1, 1)} if name == "nommer_tiny" else {}
    model = timm.create_model(name, num_classes=3, img_size=64, **options)
    seen = {True: 0, False: 0}

    def count(_module, args):
        seen[args[0].requires_grad] += len(args[0])

    model.register_forward_pre_hook(count)
    shape = InputSpec(("a", "b", "c"), 3, 64, mean=[0.5] * 3, std=[0.5] * 3)
    views = views_of(explain(model, [photo(0), photo(1)], shape=shape))
    assert views["gradcam"].figures
    assert views["slots" if name == "glnet_nano" else "nomination"].figures
    assert seen == {False: 2, True: 2}


def test_views_of_one_image_do_not_depend_on_those_beside_it():
    model = vit()
    alone, beside = explain(model, photo(3)), explain(model, [photo(0), photo(3)])
    for one, other in zip(alone.samples[0].views, beside.samples[1].views, strict=True):
        if one.key != "cka":
            assert [f.caption for f in one.figures] == [f.caption for f in other.figures]
            assert one.key != "gradcam" or np.abs(one.figures[0].pixels - 1.0 * other.figures[0].pixels).max() <= 1


def test_one_view_and_one_layer_may_be_given_as_a_word():
    (view,) = explain(vit(), photo(), views="attention", layers="blocks.1").samples[0].views
    assert [figure.layer for figure in view.figures] == ["blocks.1.attn"]


def test_normalisation_that_is_assumed_is_said():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, patch_size=8, **sizes))
    assert "0.5 were assumed" in explain(model, photo(), views=["density"]).notes[0]
    shape = InputSpec(("a", "b"), 3, 32, mean=[0.4] * 3, std=[0.2] * 3)
    assert explain(model, photo(), views=["density"], shape=shape).notes == ()
    assert explain(vit(), photo(), views=["density"]).notes == ()


def test_block_heads_and_estimator_are_the_users_choice(tmp_path):
    model = timm.create_model(
        "glnet_stl", num_classes=3, dims=(32, 32, 32, 32), depths=(1, 1, 2, 1), num_slots=4, img_size=64
    ).eval()
    images = [np.random.default_rng(i).integers(0, 256, (64, 64, 3), dtype=np.uint8) for i in range(4)]
    chosen = ["slots-training", "attention", "cka"]
    explained = explain(model, images, views=chosen, block=2, heads="all", estimator="biased")
    views = {view.key: view for view in explained.samples[0].views}
    assert views["slots-training"].figures[0].layer == "stages.1.blocks.0.mixer.global_branch"
    assert views["attention"].figures[0].numbers["heads"][0]["head"] == 0
    assert views["cka"].figures[0].numbers["estimator"] == "biased"


def test_command_follows_the_slots_of_a_block_by_epoch_and_draws_heads(tmp_path):
    from saccade.cli import main

    settings = {
        "data.train_limit": 20,
        "optim.batch_size": 10,
        "keep.states": 100,
        "keep.every_steps": 2,
        "engine.device": "cpu",
        "model.options": {"dims": [32, 64], "depths": [2, 1], "pattern": ["G", "A"], "num_slots": 4},
    }
    run = saccade.train(epochs=3, out=tmp_path / "run", settings=settings, quiet=True)
    Image.fromarray(np.arange(28 * 28, dtype=np.uint8).reshape(28, 28)).save(tmp_path / "image.png")
    flags = ["--views", "slots-training,attention", "--block", "2", "--epochs", "1,3", "--heads", "0"]
    assert main(["explain", str(run.path), str(tmp_path / "image.png"), "--out", str(tmp_path / "page"), *flags]) == 0
    numbers = (tmp_path / "page" / "numbers.json").read_text()
    assert '"checkpoint": "epoch 1"' in numbers
    assert '"checkpoint": "epoch 2"' not in numbers
    assert "epoch 3 (final weights)" in numbers
    assert "stages.0.blocks.1.mixer.global_branch" in numbers
    assert '"head": 0' in numbers


def test_a_view_is_a_registered_function_and_nothing_else_is_touched(monkeypatch):
    from saccade.explanation.request import VIEWS, register_view
    from saccade.explanation.view import Figure, View

    monkeypatch.setattr(VIEWS, "_found", dict(VIEWS._found))

    @register_view("brightness", rank=15)
    def brightness(request):
        means = [float(pixels.mean()) for pixels in request.pixels]
        return [View("brightness", "How bright", "", [Figure("b", "", numbers={"mean": mean})]) for mean in means]

    explanation = explain(vit(), [photo(), photo(1)], views=["gradcam", "brightness"])
    for image in explanation.samples:
        assert [view.key for view in image.views] == ["gradcam", "brightness"]
        assert image.views[1].figures[0].numbers["mean"] == pytest.approx(image.pixels.mean())
    assert list(all_views())[:3] == ["gradcam", "brightness", "attention"]
