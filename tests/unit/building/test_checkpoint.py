"""Trained weights to start from: what fits is loaded, what does not is named or refused."""

import re
import time

import pytest
import timm
import torch
from safetensors.torch import save_file

from saccade.building import checkpoint as starting
from saccade.building import pretrained
from saccade.building.build import build_model, load_model
from saccade.building.checkpoint import known_of, model_of
from saccade.data.spec import InputSpec
from saccade.models import CheckpointError
from saccade.models._published import rename_foreign
from saccade.runs.weights import save_model
from saccade.settings import ConfigError, ModelConfig


def spec_of(*outputs, size=32):
    return InputSpec(outputs=outputs, in_chans=3, img_size=size, mean=[0.5] * 3, std=[0.5] * 3)


def build(name, file, *outputs, size=32, plugins=(), **more):
    spec = spec_of(*(outputs or ("a", "b", "c")), size=size)
    config = ModelConfig(name=name, checkpoint=None if file is None else str(file), plugins=list(plugins), **more)
    return build_model(config, spec, seed=0), spec


def saved(tmp_path, name, **options):
    torch.manual_seed(7)
    file = tmp_path / f"{name}.safetensors"
    model = timm.create_model(name, **options)
    save_file(model.state_dict(), file)
    return file, model


def test_a_file_of_a_deeper_network_is_refused_and_its_own_model_named(tmp_path):
    file, _ = saved(tmp_path, "resnet34")
    with pytest.raises(CheckpointError, match=r"does not fit resnet18 \(80 tensors not in the model.*it fits resnet34"):
        build("resnet18", file)


def test_another_width_is_refused_and_its_own_model_named(tmp_path):
    file, _ = saved(tmp_path, "mobilenetv3_small_050")
    with pytest.raises(CheckpointError, match=r"of another shape.*it fits mobilenetv3_small_050.*Nothing was loaded"):
        build("mobilenetv3_small_075", file)


def test_another_architecture_is_refused_as_what_it_looks_like(tmp_path):
    file, _ = saved(tmp_path, "test_vit")
    with pytest.raises(CheckpointError, match=r"does not fit test_resnet.*missing.*look like a plain vision trans"):
        build("test_resnet", file)


@pytest.fixture
def hasty(monkeypatch):
    """No long search for a model that fits better: there is none."""
    monkeypatch.setattr(starting, "SEARCH", 0.5)


@pytest.mark.usefixtures("hasty")
def test_surplus_tensors_that_no_model_has_are_named_and_the_rest_is_loaded(tmp_path):
    file, model = saved(tmp_path, "test_resnet")
    save_file({**model.state_dict(), "projector.weight": torch.ones(2, 2)}, file)
    built, spec = build("test_resnet", file)
    assert torch.equal(built.conv1[0].weight, model.conv1[0].weight)
    assert any("not loaded from" in note and "projector.weight" in note for note in spec.notes)
    assert any("(other classes): 'fc" in note for note in spec.notes)
    assert built.new_parameters == {"fc.weight", "fc.bias"}


@pytest.mark.usefixtures("hasty")
def test_a_missing_tensor_is_named(tmp_path):
    file, model = saved(tmp_path, "test_resnet")
    weights = {name: value for name, value in model.state_dict().items() if name != "layer1.0.conv1.weight"}
    save_file(weights, file)
    with pytest.raises(CheckpointError, match=r"1 tensor missing: 'layer1\.0\.conv1\.weight'"):
        build("test_resnet", file)


@pytest.fixture
def run_file(tmp_path):
    model, spec = build("test_resnet", None, "cat", "dog", "owl")
    with torch.no_grad():
        model.fc.weight.normal_()
        model.fc.bias.copy_(torch.arange(3.0))
    file = tmp_path / "model.safetensors"
    save_model(file, model.state_dict(), ModelConfig(name="test_resnet"), spec)
    return file, model


def test_classes_in_another_order_keep_their_rows(run_file):
    file, model = run_file
    built, spec = build("test_resnet", file, "owl", "cat", "dog")
    assert torch.equal(built.fc.weight, model.fc.weight[[2, 0, 1]])
    assert torch.equal(built.fc.bias, model.fc.bias[[2, 0, 1]])
    assert any("another order; its classifier was reordered" in note for note in spec.notes)


def test_a_classifier_of_other_names_is_left_out_and_said(run_file):
    file, model = run_file
    built, spec = build("test_resnet", file, "cat", "dog", "cow")
    assert not built.fc.weight.any()
    assert torch.equal(built.conv1[0].weight, model.conv1[0].weight)
    assert any("'owl'" in note and "'cow'" in note for note in spec.notes)
    assert {"fc.weight", "fc.bias"} == built.new_parameters


def test_the_same_classes_keep_the_classifier_in_silence(run_file):
    file, model = run_file
    built, spec = build("test_resnet", file, "cat", "dog", "owl")
    assert torch.equal(built.fc.weight, model.fc.weight)
    assert spec.notes == []
    assert built.new_parameters == frozenset()


def test_what_a_run_was_trained_with_is_known_from_its_file(run_file):
    file, _ = run_file
    config = ModelConfig(name="test_resnet", checkpoint=str(file))
    known = known_of(config, {"input_size": (3, 224, 224), "mean": (0, 0, 0), "std": (1, 1, 1)})
    assert (known.img_size, known.mean) == (32, [0.5] * 3)
    assert model_of(str(file)) == "test_resnet"
    assert known_of(ModelConfig(), {}) is None


def test_a_vision_transformer_with_weights_keeps_its_patches_and_names_what_was_resampled(tmp_path):
    file, model = saved(tmp_path, "vit_tiny_patch16_224", depth=1)
    config = ModelConfig(name="vit_tiny", checkpoint=str(file))
    cfg = {"input_size": (3, 224, 224), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    assert known_of(config, cfg).options == {"patch_size": 16}
    built, spec = build("vit_tiny", file, size=64, options={"depth": 1, "patch_size": 16})
    assert built.patch_embed.patch_size == (16, 16)
    assert torch.equal(built.patch_embed.proj.weight, model.patch_embed.proj.weight)
    assert "resampled from vit_tiny_patch16_224.safetensors to the model's size: 'pos_embed'" in spec.notes
    small, _ = build("vit_tiny", None, size=64, options={"depth": 1})
    assert small.patch_embed.patch_size == (4, 4)


def published_names(own):
    """Return timm's names of an EfficientNet as EfficientNet-PyTorch has them, written down by rule."""
    names, blocks = {}, list(dict.fromkeys(m[1] for key in own if (m := re.match(r"(blocks\.\d+\.\d+)\.", key))))
    outer = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    for key in own:
        if not key.startswith("blocks."):
            part, _, last = key.partition(".")
            names[key] = f"{outer[part]}.{last}"
            continue
        block = ".".join(key.split(".")[:3])
        part, last = key.split(".")[3], ".".join(key.split(".")[4:])
        wide = {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1"}
        wide |= {"conv_pwl": "_project_conv", "bn3": "_bn2"}
        plain = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
        table = wide if f"{block}.conv_pwl.weight" in own else plain
        names[key] = f"_blocks.{blocks.index(block)}.{table[part]}.{last}"
    return names


def test_the_layout_of_efficientnet_pytorch_is_loaded_by_name(tmp_path):
    torch.manual_seed(3)
    model = timm.create_model("tf_efficientnet_lite0")
    own = model.state_dict()
    names = published_names(own)
    assert names["blocks.0.0.conv_pw.weight"] == "_blocks.0._project_conv.weight"
    assert names["blocks.6.0.bn3.running_mean"] == "_blocks.15._bn2.running_mean"
    file = tmp_path / "efficientnet-lite0.pth"
    torch.save({names[key]: value for key, value in own.items()}, file)
    built, spec = build("tf_efficientnet_lite0", file)
    found = built.state_dict()
    assert all(torch.equal(found[key], own[key]) for key in own if not key.startswith("classifier"))
    assert spec.notes == [f"not loaded from {file.name} (other classes): 'classifier.weight', 'classifier.bias'"]
    assert rename_foreign(own, own) == own


def test_pretrained_without_a_network_fails_soon_and_names_the_flag(monkeypatch):
    monkeypatch.setattr(pretrained.urllib.request, "getproxies", dict)

    def refuse(*args, **options):
        raise OSError("no route")

    monkeypatch.setattr(pretrained.socket, "create_connection", refuse)
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=r"no route.*--checkpoint FILE\|RUN and --model dm_nfnet_f6"):
        build("dm_nfnet_f6", None, pretrained=True)
    assert time.monotonic() - began < 30


def test_pretrained_of_a_model_without_weights_is_refused():
    with pytest.raises(ConfigError, match=r"glnet_nano has no pretrained weights; .*--checkpoint"):
        build("glnet_nano", None, pretrained=True)


def test_plugins_start_as_identity_or_say_so(tmp_path):
    file, _ = saved(tmp_path, "test_vit", num_classes=3)
    _, spec = build("test_vit", file, size=160, plugins=["broadcast"])
    assert any(
        re.search(r"broadcast changes the features .*broadcast:scale=true starts as the id", n) for n in spec.notes
    )
    _, spec = build("test_vit", file, size=160, plugins=["broadcast:scale=true"])
    assert any("broadcast:scale=true starts as the identity" in note for note in spec.notes)
    _, spec = build("test_vit", file, size=160, plugins=["second_order"])
    assert any("replaces the trained classifier with a new one; second_order:beside=true" in n for n in spec.notes)


def test_a_second_order_head_beside_the_trained_classifier_changes_no_logit(tmp_path):
    file, _ = saved(tmp_path, "test_resnet", num_classes=3)
    plain, _ = build("test_resnet", file)
    both, _ = build("test_resnet", file, plugins=["second_order:beside=true"])
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(plain.eval()(x), both.eval()(x))
    assert {name.split(".")[0] for name in both.new_parameters} == {"second_order"}
    both(x).sum().backward()
    assert both.second_order.layer.word_fc.weight.grad.abs().sum() > 0
    assert both.fc.weight.grad.abs().sum() > 0
    both.reset_classifier(5)
    assert both.eval()(x).shape == (2, 5)


def test_a_run_with_a_plugin_gives_its_weights_to_the_same_plugin(tmp_path):
    model, spec = build("test_vit", None, size=160, plugins=["broadcast:scale=true"])
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("broadcast.scale"):
                value.fill_(0.5)
    file = tmp_path / "model.safetensors"
    save_model(file, model.state_dict(), ModelConfig(name="test_vit", plugins=["broadcast:scale=true"]), spec)
    again, said = build("test_vit", file, size=160, plugins=["broadcast:scale=true"])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    bare, said = build("test_vit", file, size=160)
    assert any("(not in the model)" in note and "broadcast" in note for note in said.notes)
    opened, _ = load_model(file)
    assert len(list(opened.parameters())) == len(list(model.parameters())) > len(list(bare.parameters()))
