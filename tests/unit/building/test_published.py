"""A published checkpoint, named as NAME@FILE, is asked as any run is, and answers as the published network did."""

import math
import pickle

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import ImageNetInfo

import saccade
from saccade.building import loading
from saccade.building.loading import find_target, open_model
from saccade.data.spec import InputSpec
from saccade.models import CheckpointError
from saccade.settings import ConfigError
from support.exports import tiny_run
from support.golden import case, relative_error
from support.published import write_published

CLOSE = 1e-4  # of float32, as for the networks themselves
SOT = case("sot_7", "112")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_published(SOT, tmp_path_factory.mktemp("published") / "sot_7.pth")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Two images in folders named as those of ImageNet are."""
    folder, ids = tmp_path_factory.mktemp("images"), list(ImageNetInfo("imagenet-1k").label_names())
    for number in (3, 7):
        pixels = np.random.default_rng(number).integers(0, 256, (150, 170, 3), dtype=np.uint8)
        (folder / ids[number]).mkdir()
        Image.fromarray(pixels).save(folder / ids[number] / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def shares(checkpoint, images):
    """What the network says of the images, by timm and `load_official` alone."""
    model = timm.create_model("sot_7").eval()
    saccade.load_official(model, checkpoint)
    spec = InputSpec(("",) * 1000, 3, 112, MEAN, STD, shorter=128)
    framed = [spec.framing(np.asarray(Image.open(file))) for file in sorted(images.rglob("*.png"))]
    x = (torch.stack(framed) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    with torch.no_grad():
        return model(x).softmax(1)


@pytest.fixture
def opened(monkeypatch):
    """The models that verbs open by name."""
    found, original = [], loading.open_timm

    def watch(target):
        found.append(original(target))
        return found[-1]

    monkeypatch.setattr(loading, "open_timm", watch)
    return found


def golden_error(model):
    with torch.no_grad():
        return relative_error(model(SOT.input()), SOT.logits)


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
@pytest.mark.parametrize("prefix", ["", "timm:"])
def test_a_checkpoint_answers_as_published(prefix, ending, tmp_path):
    target = f"{prefix}sot_7@{write_published(SOT, tmp_path / f'x{ending}')}"
    loaded = open_model(find_target(target))
    assert golden_error(loaded.model) < CLOSE
    assert (loaded.name, loaded.folder, loaded.spec.task) == ("sot_7", None, "classify")
    assert (loaded.spec.img_size, loaded.spec.shorter, loaded.spec.mean, loaded.spec.std) == (112, 128, MEAN, STD)
    assert loaded.spec.outputs[1] == "goldfish, Carassius auratus"
    assert golden_error(saccade.load_model(target)[0]) < CLOSE


def test_evaluate_measures_what_the_network_says(checkpoint, images, shares, opened):
    result = saccade.evaluate(f"sot_7@{checkpoint}", images, quiet=True)
    right = shares[[0, 1], [3, 7]]
    assert result.metrics()["nll"] == pytest.approx(-right.log().mean().item(), rel=1e-4)
    assert result.metrics()["top1"] == (shares.argmax(1) == torch.tensor([3, 7])).float().mean()
    assert [golden_error(model) < CLOSE for model, _ in opened] == [True]


def test_predict_and_explain_say_what_the_network_says(checkpoint, images, shares, opened):
    info = ImageNetInfo("imagenet-1k")
    names = [info.index_to_description(index) for index in range(1000)]
    said = list(saccade.predict(f"sot_7@{checkpoint}", images))
    explained = saccade.explain(f"sot_7@{checkpoint}", images, views=["gradcam"])
    assert len(said) == len(explained.samples) == 2
    for prediction, sample, share in zip(said, explained.samples, shares, strict=True):
        best = share.topk(5)
        for rows in ([(row[0], row[2]) for row in prediction.answer.rows[:5]], sample.answer):
            assert [name for name, _ in rows] == [names[index] for index in best.indices]
            assert [value for _, value in rows] == pytest.approx(best.values.tolist(), rel=1e-3)
    assert [golden_error(model) < CLOSE for model, _ in opened] == [True, True]


def test_options_of_a_variant_stand_behind_its_name(checkpoint):
    model = open_model(f"sot_7:num_iter=3,img_size=128@{checkpoint}")
    assert model.model.head.pool.norm.num_iter == 3
    assert (model.spec.img_size, model.spec.shorter) == (128, round(128 / 0.875))
    with pytest.raises(ConfigError, match=r"sot_7:num_itr=3: model\.options has 'num_itr'"):
        open_model(f"sot_7:num_itr=3@{checkpoint}")
    with pytest.raises(ConfigError, match="has 'checkpoint_path'"):
        open_model(f"sot_7:checkpoint_path=/x.pth@{checkpoint}")


def test_a_checkpoint_of_other_classes_keeps_its_classifier(tmp_path):
    weights = SOT.state_dict()
    for key in weights:
        if key.startswith(("classifier.cls_fc", "classifier.visual_fc")):
            weights[key] = weights[key][:10].clone()
    save_file(weights, tmp_path / "ten.safetensors")
    loaded = open_model(f"sot_7@{tmp_path / 'ten.safetensors'}")
    with torch.no_grad():
        assert relative_error(loaded.model(SOT.input()), SOT.logits[:, :10]) < CLOSE
    assert loaded.spec.outputs == tuple(f"class {number}" for number in range(10))


def test_a_file_that_names_no_model_is_told_with_a_guess(checkpoint, tmp_path):
    with pytest.raises(CheckpointError, match=rf"looks like sot_7\. Name the model, as in sot_7@{checkpoint}"):
        open_model(find_target(checkpoint))
    save_file(timm.create_model("resnet18").state_dict(), tmp_path / "r.safetensors")
    with pytest.raises(CheckpointError, match=r"looks like a ResNet.*Name the model, as in NAME@.*r\.safetensors"):
        open_model(find_target(tmp_path / "r.safetensors"))


def test_what_does_not_fit_is_told_and_no_classifier_is_made_up(checkpoint, tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot be loaded as cvt_13: .*looks like sot_7"):
        open_model(f"cvt_13@{checkpoint}")
    with pytest.raises(FileNotFoundError, match=r"no such file .*none\.pth"):
        find_target(f"sot_7@{tmp_path / 'none.pth'}")
    body = {key: value for key, value in SOT.state_dict().items() if "_fc." not in key}
    save_file(body, tmp_path / "body.safetensors")
    with pytest.raises(
        CheckpointError, match="no classifier, and looks like sot_7: train a classifier with --checkpoint"
    ):
        open_model(f"sot_7@{tmp_path / 'body.safetensors'}")
    run = tiny_run(tmp_path / "run", name="glnet_nano")
    with pytest.raises(CheckpointError, match="records its own model; give it without glnet_nano@"):
        open_model(f"glnet_nano@{run / 'model.safetensors'}")
    with pytest.raises(CheckpointError, match=r"hub has no weights for sot_7; give a file with sot_7@FILE"):
        open_model("sot_7")


class Evil:
    def __reduce__(self):
        return (math.frexp, (1.0,))


def test_nothing_in_a_checkpoint_is_run(tmp_path, monkeypatch):
    for name, content in (("a.pth", Evil()), ("b.pth", {"model": Evil()})):
        (tmp_path / name).write_bytes(pickle.dumps(content))
        torch.save(content, tmp_path / f"torch_{name}")
    monkeypatch.setattr(pickle, "Unpickler", None)
    for file in tmp_path.iterdir():
        for target in (f"sot_7@{file}", file):
            with pytest.raises(CheckpointError):
                open_model(find_target(target))


def test_a_server_opens_them_too(checkpoint):
    from saccade.deployment.serve import _open

    predictor, explainer = _open(f"sot_7@{checkpoint}", device="cpu", trust=False)
    assert predictor.name == "sot_7"
    assert explainer is not None
    assert golden_error(predictor.model) < CLOSE


def test_weights_as_this_package_writes_them_are_taken_too(checkpoint, tmp_path):
    model = timm.create_model("sot_7")
    saccade.load_official(model, checkpoint)
    save_file(model.state_dict(), tmp_path / "ours.safetensors")
    assert load_file(tmp_path / "ours.safetensors").keys() != SOT.state_dict().keys()
    assert golden_error(open_model(f"sot_7@{tmp_path / 'ours.safetensors'}").model) < CLOSE
