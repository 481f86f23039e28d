"""timm's models by name: as teachers and to be asked, from a file or told soon why not, with their classes by name."""

import pickle
import time

import pytest
import timm
import torch
from safetensors.torch import save_file

import saccade
from saccade.building import pretrained
from saccade.building.build import open_teacher
from saccade.building.loading import open_model
from saccade.building.pretrained import class_words, match_classes, open_timm
from saccade.models import CheckpointError
from saccade.settings import ConfigError
from support.exports import tiny_run
from support.trainings import png_folder

NAME = "mobilenetv3_small_050"
KNOWN = class_words(NAME, 1000)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "teacher.safetensors"
    save_file(timm.create_model(NAME).state_dict(), file)
    return file


@pytest.fixture(scope="module")
def fish(tmp_path_factory):
    folder = png_folder(tmp_path_factory.mktemp("fish"), train=12, val=3)
    for split in ("train", "val"):
        for old, new in (("class0", "goldfish"), ("class1", "n01440764"), ("class2", "Great_White-Shark")):
            (folder / split / old).rename(folder / split / new)
    return folder


def test_a_file_gives_the_weights_it_holds_and_imagenets_names(weights):
    model, spec = open_timm(f"{NAME}@{weights}")
    other = timm.create_model(NAME)
    torch.manual_seed(0)
    want = timm.create_model(NAME).eval()
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(x), want(x))
    assert not torch.equal(model(x), other.eval()(x))
    assert spec.outputs[1] == "goldfish, Carassius auratus"
    assert open_model(f"timm:{NAME}@{weights}").origin == "timm"


def test_classes_are_found_by_word_and_identifier_and_number():
    assert match_classes(["goldfish", "n01440764", "Great_White-Shark"], KNOWN, teacher="t") == [1, 0, 2]
    assert match_classes(["1", "0", "999"], KNOWN, teacher="t") == [1, 0, 999]
    assert match_classes([words[0] for words in KNOWN], KNOWN, teacher="t") is None
    assert match_classes(["b", "a"], [["a"], ["b"], ["c"]], teacher="t") == [1, 0]


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        (["goldfish", "dragon"], r"does not know 'dragon' \(the dataset has 2 classes.*n01440764"),
        (["goldfish", "crane"], "has several classes called 'crane'"),
        (["goldfish", "Carassius auratus"], "has a single class for 'goldfish', 'Carassius auratus'"),
    ],
)
def test_classes_that_cannot_be_told_are_refused(classes, told):
    with pytest.raises(ConfigError, match=told):
        match_classes(classes, KNOWN, teacher="t")


@pytest.mark.parametrize("plugin", ["distill", "token_label"])
def test_a_model_of_timm_teaches_the_classes_it_knows_by_name(plugin, weights, fish, tmp_path):
    seen = []
    original = pretrained.match_classes

    def watch(*args, **options):
        seen.append(original(*args, **options))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saccade.building.build.match_classes", watch)
        run = saccade.train(
            str(fish),
            recipe="quick",
            epochs=1,
            batch_size=4,
            out=tmp_path / "run",
            plugins=[f"{plugin}:teacher=timm:{NAME}@{weights}"],
            settings={"data.img_size": 32, "engine.device": "cpu"},
            quiet=True,
        )
    assert seen == [[2, 1, 0]]  # Great_White-Shark, goldfish, n01440764
    assert run.metrics["step"] == 3


def test_without_a_network_the_way_out_is_told_soon(monkeypatch):
    monkeypatch.setattr(pretrained.urllib.request, "getproxies", dict)

    def refuse(*args, **options):
        raise OSError("no route")

    monkeypatch.setattr(pretrained.socket, "create_connection", refuse)
    began = time.monotonic()
    with pytest.raises(
        CheckpointError, match=r"no route\). Run once with network access.*timm:dm_nfnet_f6@FILE.safetensors"
    ):
        open_timm("dm_nfnet_f6")
    assert time.monotonic() - began < 20


def test_a_proxy_that_does_not_answer_is_told_as_soon(monkeypatch):
    seen = []

    def refuse(address, **_):
        seen.append(address)
        raise OSError("no route")

    monkeypatch.setattr(pretrained.urllib.request, "getproxies", lambda: {"https": "http://proxy.example:3128"})
    monkeypatch.setattr(pretrained.socket, "create_connection", refuse)
    with pytest.raises(CheckpointError, match=r"no route\). Run once with network access"):
        open_timm("dm_nfnet_f6")
    assert seen == [("proxy.example", 3128)]


class Evil:
    def __reduce__(self):
        return (open, ("/tmp/never_written", "w"))


def test_a_pickle_is_never_opened(tmp_path, monkeypatch):
    file = tmp_path / "weights.pth"
    file.write_bytes(pickle.dumps(Evil()))
    for reader in ("load", "loads"):
        monkeypatch.setattr(pickle, reader, lambda *args, **options: pytest.fail("unpickled"))
    with pytest.raises(CheckpointError, match=r"give a \.safetensors file"):
        open_timm(f"{NAME}@{file}")
    disguised = file.rename(tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        open_timm(f"{NAME}@{disguised}")


def test_what_does_not_fit_is_told(weights, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'mobilenetv3_small_050'"):
        open_timm("mobilenetv3_smal_050")
    with pytest.raises(CheckpointError, match="do not fit timm's resnet18 with 1000 classes"):
        open_timm(f"resnet18@{weights}")
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_timm(f"{NAME}@{tmp_path / 'none.safetensors'}")


@pytest.mark.parametrize("options", ["num_heads=7", "num_heads=0", "patch_size=0"])
@pytest.mark.parametrize("name", ["test_vit", "sot_7"])
def test_options_that_build_nothing_are_told(name, options, tmp_path):
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "w.safetensors")
    with pytest.raises((CheckpointError, ConfigError), match=name):
        open_timm(f"{name}:{options}@{tmp_path / 'w.safetensors'}")


@pytest.mark.parametrize(("name", "plugins"), [("test_vit", ["uniform"]), ("glnet_nano", [])])
def test_a_file_that_says_which_model_it_is_of_is_not_taken_for_a_published_one(name, plugins, tmp_path):
    run = tiny_run(tmp_path / "run", name=name, img_size=160, plugins=plugins)
    with pytest.raises(CheckpointError, match=f"records its own model; give it without {name}@"):
        open_timm(f"{name}@{run / 'model.safetensors'}")


@pytest.mark.parametrize("given", ["timm:{}", "{}", "timm:{}:img_size=64", "{}:img_size=64"])
def test_a_teacher_is_named_as_any_model_is_and_knows_all_of_imagenets_words(given, tmp_path):
    save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), tmp_path / "w.safetensors")
    name = given.format("vit_tiny").removesuffix(":img_size=64")
    if "img_size" in given:
        small = timm.create_model("vit_tiny_patch16_224", img_size=64)
        save_file(small.state_dict(), tmp_path / "w.safetensors")
    _, spec, known = open_teacher(f"{given.format('vit_tiny')}@{tmp_path / 'w.safetensors'}")
    assert spec.img_size == (64 if "img_size" in given else 224)
    assert "n01440764" in known[0]
    assert match_classes(["n01443537"], known, teacher=name) == [1]
    with pytest.raises(ConfigError, match="timm has no model 'vit_tny'"):
        open_teacher("timm:vit_tny")


def test_a_teacher_of_other_classes_or_channels_is_refused(weights, fish, tmp_path):
    with pytest.raises(ConfigError, match="does not know"):
        saccade.train(
            str(png_folder(tmp_path / "data", train=12, val=3)),
            recipe="quick",
            out=tmp_path / "run",
            plugins=[f"distill:teacher=timm:{NAME}@{weights}"],
            settings={"data.img_size": 32},
            quiet=True,
        )
    with pytest.raises(ConfigError, match="on images with 3 channels; the dataset is for classify, with 1"):
        saccade.train(
            recipe="quick", out=tmp_path / "grey", plugins=[f"distill:teacher=timm:{NAME}@{weights}"], quiet=True
        )
