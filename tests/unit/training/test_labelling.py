"""Label maps from the command to training: written by a teacher, read beside the images, moved with them."""

import pytest
import torch

import saccade
from saccade.cli import main
from saccade.data.augment import Augment
from saccade.data.draws import key
from saccade.settings import AugmentConfig, ConfigError
from saccade.tasks import LabelMaps, save_label_maps
from saccade.tasks.auxiliary.teacher import TeacherLabels
from support.trainings import png_folder

SMALL = {"embed_dim": 16, "depth": 1, "num_heads": 1, "patch_size": 8}
SETTINGS = {"data.img_size": 32, "engine.device": "cpu", "augment.mixup": 0.0, "augment.cutmix": 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return png_folder(tmp_path_factory.mktemp("data"), train=24, val=6)


@pytest.fixture(scope="module")
def teacher(data, tmp_path_factory):
    settings = {**SETTINGS, "model.name": "vit_tiny_patch16_224", "model.options": SMALL}
    out = tmp_path_factory.mktemp("teacher") / "run"
    return saccade.train(str(data), recipe="quick", epochs=1, batch_size=8, out=out, settings=settings, quiet=True).path


@pytest.fixture(scope="module")
def maps(data, teacher, tmp_path_factory):
    out = tmp_path_factory.mktemp("maps") / "labels"
    assert main(["data", "labels", str(data), "--teacher", str(teacher), "--out", str(out), "--top", "2"]) == 0
    return out


def train(data, maps, out, **more):
    return saccade.train(
        str(data),
        recipe="quick",
        model="vit_tiny_patch16_224",
        epochs=1,
        batch_size=8,
        out=out,
        plugins=[f"token_label:maps={maps}"],
        settings={**SETTINGS, "model.options": SMALL, **more},
        quiet=True,
    )


def test_the_command_writes_what_the_teacher_says_of_the_whole_image(data, teacher, maps):
    from PIL import Image
    from torchvision.transforms.functional import pil_to_tensor

    found = LabelMaps(maps)
    assert len(found) == 24
    assert found.classes == ("class0", "class1", "class2")
    model, spec = saccade.load_model(teacher)
    name = "class1/004.png"
    file = data / "train" / name
    image = pil_to_tensor(Image.open(file).resize((32, 32), Image.Resampling.BICUBIC, reducing_gap=3.0)).float() / 255
    asked = TeacherLabels(model, images_norm=([0.0] * 3, [1.0] * 3), teacher_norm=(spec.mean, spec.std))
    want = asked.logits(image[None])[1][0].softmax(0)
    key_name = next(known for known in found if known.endswith(name))
    torch.testing.assert_close(found[key_name], want, atol=2e-3, rtol=0)


@pytest.mark.parametrize("crop", ["pad", "resized"])
@pytest.mark.parametrize("resident", ["auto", "never"])
def test_training_learns_from_the_maps(data, maps, crop, resident, tmp_path):
    more = {"augment.crop": crop, "data.resident": resident, "data.workers": 0}
    with_maps = train(data, maps, tmp_path / "with", **more)
    assert with_maps.metrics["step"] == 3
    if (crop, resident) == ("pad", "auto"):
        other = tmp_path / "other"
        names = list(LabelMaps(maps))
        save_label_maps(other, ((name, torch.eye(3)[0][:, None, None].expand(3, 4, 4)) for name in names))
        assert train(data, other, tmp_path / "run", **more).metrics["train_loss"] != with_maps.metrics["train_loss"]


@pytest.mark.parametrize("config", [{"crop": "pad", "pad": 0.25}, {"crop": "resized"}, {"crop": "none", "flip": 1.0}])
def test_labels_move_with_the_image(config, tmp_path):
    """An image's columns and rows grow brighter; its map says the brightness: labels then tell that of the image."""
    side, count = 64, 40
    ramp = torch.linspace(0, 1, side)
    bright = (0.7 * ramp[None, :] + 0.3 * ramp[:, None]).expand(3, side, side)
    cells = bright[:1].unflatten(1, (16, 4)).unflatten(3, (16, 4)).mean((2, 4))
    maps = save_label_maps(tmp_path / "maps", [("one", torch.cat([cells, 1 - cells]))])
    index, value = maps.best("one")
    shown = torch.tensor([0.0, 0.25, 0.5, 1.0])  # a frame took this part of the image
    part = torch.nn.functional.interpolate(bright[None, :, 16:, :32], size=(48, 48), mode="bilinear")
    batch = {
        "image": (part * 255).round().to(torch.uint8).expand(count, -1, -1, -1),
        "key": key(1, torch.arange(count)),
        "label_index": index.int().expand(count, -1, -1, -1),
        "label_value": value.half().expand(count, -1, -1, -1),
        "label_box": shown.expand(count, -1),
    }
    moved = Augment(AugmentConfig(**config), mean=[0.0] * 3, std=[1.0] * 3, img_size=48)(batch)
    boxes, flips = moved["label_box"], moved["label_flip"]
    labels = maps.align(moved["label_index"], moved["label_value"], (4, 4), boxes=boxes, flips=flips)
    want = moved["image"].mean(1).unflatten(1, (4, 12)).unflatten(3, (4, 12)).mean((2, 4))
    inner = (
        slice(1, 3) if config["crop"] == "pad" else slice(None)
    )  # edges that are mirrored have no label of their own
    difference = (labels.dense[:, 0] - want)[:, inner, inner].abs()
    assert difference.max() < 0.05
    assert want.std() > 0.05


def test_maps_of_other_classes_and_missing_images_are_refused(data, maps, tmp_path):
    other = png_folder(tmp_path / "other", train=8, val=4, classes=2)
    with pytest.raises(ConfigError, match=r"are for the classes class0, class1, class2.*saccade data labels"):
        train(other, maps, tmp_path / "run")
    few = tmp_path / "few"
    save_label_maps(few, [("train/other.png", torch.eye(3)[:, :, None])])
    with pytest.raises(ValueError, match="has no label map of"):
        train(data, few, tmp_path / "again")
    with pytest.raises(FileNotFoundError, match=r"has no labels\.json"):
        train(data, tmp_path / "nowhere", tmp_path / "third")


def test_maps_of_two_sizes_and_mixing_are_refused(data, maps, tmp_path):
    both = tmp_path / "both"
    save_label_maps(both, [("a", torch.ones(3, 2, 2) / 3), ("b", torch.ones(3, 4, 4) / 3)])
    with pytest.raises(ConfigError, match="have 2 different sizes"):
        train(data, both, tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot be mixed; set both to 0"):
        train(data, maps, tmp_path / "again", **{"augment.mixup": 0.5})


def test_the_command_says_what_it_needs(data, teacher, maps, capsys):
    assert main(["data", "labels", str(data)]) != 0
    assert "--teacher RUN --out DIR" in capsys.readouterr().err
    assert main(["data", "labels", str(data), "--teacher", str(teacher), "--out", str(maps)]) != 0
    assert "already holds label maps" in capsys.readouterr().err
    assert main(["data", "labels", str(data), "--teacher", str(teacher), "--out", f"{maps}2", "--top", "0"]) != 0
    assert "at least 1" in capsys.readouterr().err
