"""Loading the published code's checkpoints: complete, or one clear error and an untouched model."""

import pickle
import warnings

import pytest
import safetensors.torch
import timm
import torch

import saccade
from support.golden import case, relative_error

PUBLISHED = [("glnet_stl", "glnet_stl"), ("cvt_13", "cvt_13"), ("t2t_vit_14", "t2t_vit_14"), ("sot_7", "sot_7")]


@pytest.fixture(scope="module")
def glnet_weights():
    return case("glnet_stl", "97x131").state_dict()


@pytest.fixture
def glnet_file(tmp_path, glnet_weights):
    path = tmp_path / "their.pth"
    torch.save(glnet_weights, path)
    return path


def snapshot(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "golden", "wrapper"),
    [  # what a checkpoint is wrapped in does not depend on the network: one always, all with the slow tests
        pytest.param(*both, wrapper, marks=[] if wrapper is None or both[0] == "sot_7" else [pytest.mark.slow])
        for both in PUBLISHED
        for wrapper in (None, "model", "model_ema", "state_dict")
    ],
)
def test_published_layout_loads_by_both_doors(tmp_path, name, golden, wrapper):
    weights = case(golden, "112" if name == "sot_7" else "224").state_dict()
    path = tmp_path / "their.pth"
    torch.save({wrapper: weights, "epoch": 3} if wrapper else weights, path)
    by_timm = timm.create_model(name, checkpoint_path=str(path)).eval()
    by_us = timm.create_model(name).eval()
    report = saccade.load_official(by_us, path)
    assert not report.missing
    assert not report.unexpected
    for (key, a), b in zip(by_timm.state_dict().items(), by_us.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


def test_loaded_weights_give_the_published_answer(glnet_file):
    run = case("glnet_stl", "97x131")
    model = timm.create_model("glnet_stl", checkpoint_path=str(glnet_file)).eval()
    with torch.inference_mode():
        assert relative_error(model(run.input()), run.logits) < 1e-4


def test_averaged_weights_are_preferred(tmp_path, glnet_weights):
    path = tmp_path / "both.pth"
    torch.save({"model": {k: torch.zeros_like(v) for k, v in glnet_weights.items()}, "model_ema": glnet_weights}, path)
    model = timm.create_model("glnet_stl")
    saccade.load_official(model, path)
    assert model.head.weight.abs().sum() > 0


def test_safetensors_and_wrapped_prefixes_load(tmp_path, glnet_weights):
    path = tmp_path / "their.safetensors"
    safetensors.torch.save_file({f"module.{k}": v.contiguous() for k, v in glnet_weights.items()}, path)
    assert not saccade.load_official(timm.create_model("glnet_stl"), path).missing


def test_our_own_layout_loads_too(tmp_path):
    model, twin = timm.create_model("sot_7"), timm.create_model("sot_7")
    torch.save(model.state_dict(), tmp_path / "ours.pth")
    saccade.load_official(twin, tmp_path / "ours.pth")
    assert unchanged(twin, model.state_dict())


def test_settings_of_swin_style_scripts_are_passed_over(tmp_path, glnet_weights, monkeypatch):
    """Their files carry a yacs CfgNode beside the weights."""
    import sys
    import types

    yacs, config = types.ModuleType("yacs"), types.ModuleType("yacs.config")

    class CfgNode(dict):
        pass

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    config.CfgNode = CfgNode
    monkeypatch.setitem(sys.modules, "yacs", yacs)
    monkeypatch.setitem(sys.modules, "yacs.config", config)
    settings = CfgNode(MODEL=CfgNode(NAME="x"))
    settings.__dict__["__immutable__"] = True
    torch.save({"model": glnet_weights, "config": settings}, tmp_path / "swin_style.pth")
    monkeypatch.delitem(sys.modules, "yacs.config")
    monkeypatch.delitem(sys.modules, "yacs")
    assert not saccade.load_official(timm.create_model("glnet_stl"), tmp_path / "swin_style.pth").missing


@pytest.mark.parametrize("door", ["timm", "saccade"])
@pytest.mark.parametrize(("name", "golden"), PUBLISHED)
def test_classifier_of_another_size_is_dropped_with_a_warning(tmp_path, name, golden, door):
    path = tmp_path / "their.pth"
    torch.save(case(golden, "112" if name == "sot_7" else "224").state_dict(), path)
    warned = pytest.warns(UserWarning, match="classifier has 1000 classes, the model 10")
    if door == "timm":
        with warned:
            model = timm.create_model(name, num_classes=10, checkpoint_path=str(path))
    else:
        model = timm.create_model(name, num_classes=10)
        with warned:
            report = saccade.load_official(model, path)
        assert report.dropped
        assert not report.missing
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 10)


def test_pooling_of_a_second_order_head_is_kept_when_its_classifier_is_dropped(tmp_path):
    weights = case("sot_7", "112").state_dict()
    torch.save(weights, tmp_path / "their.pth")
    model = timm.create_model("sot_7", num_classes=10)
    with pytest.warns(UserWarning, match="not loaded: head.class_fc.bias, head.class_fc.weight"):
        report = saccade.load_official(model, tmp_path / "their.pth")
    assert {key.rpartition(".")[0] for key in report.dropped} == {"head.class_fc", "head.word_fc"}
    torch.testing.assert_close(model.head.pool.proj.weight, weights["classifier.representation.wr.weight"])


def test_position_table_is_resized_to_the_models_grid(tmp_path):
    torch.save(case("t2t_vit_14", "224").state_dict(), tmp_path / "their.pth")
    model = timm.create_model("t2t_vit_14", img_size=(160, 256))
    report = saccade.load_official(model, tmp_path / "their.pth")
    assert report.resized == ["pos_embed"]
    assert model.pos_embed.shape[1] == 1 + 10 * 16


@pytest.mark.parametrize("name", ["nommer_tiny", "nommer_base"])
def test_nommer_tables_are_resized_to_grid_and_window(tmp_path, name):
    torch.save(case(name, "224").state_dict(), tmp_path / "their.pth")
    model = timm.create_model(name, img_size=192, window_size=6)
    report = saccade.load_official(model, tmp_path / "their.pth")
    assert not report.missing
    assert any("pos_embed" in key for key in report.resized)


def test_input_layer_is_fitted_to_other_channels(glnet_file, glnet_weights):
    model = timm.create_model("glnet_stl", in_chans=1)
    report = saccade.load_official(model, glnet_file)
    first = model.get_parameter(model.pretrained_cfg["first_conv"] + ".weight")
    torch.testing.assert_close(first, glnet_weights["downsample_layers.0.0.weight"].sum(1, keepdim=True))
    assert report.resized


def test_file_of_another_model_names_the_model_it_looks_like(tmp_path, glnet_file):
    model = timm.create_model("glnet_4g")
    before = snapshot(model)
    with pytest.raises(
        saccade.CheckpointError, match=r"do not fit glnet_4g: they look like glnet_stl.*Nothing was loaded"
    ):
        saccade.load_official(model, glnet_file)
    with pytest.raises(saccade.CheckpointError, match="look like glnet_stl"):
        timm.create_model("glnet_4g", checkpoint_path=str(glnet_file))
    assert unchanged(model, before)


def test_a_strangers_file_is_named(tmp_path):
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), tmp_path / "vit.pth")
    torch.save(timm.create_model("swin_tiny_patch4_window7_224").state_dict(), tmp_path / "swin.pth")
    model = timm.create_model("sot_7")
    with pytest.raises(saccade.CheckpointError, match="plain vision transformer"):
        saccade.load_official(model, tmp_path / "vit.pth")
    with pytest.raises(saccade.CheckpointError, match="Swin"):
        saccade.load_official(model, tmp_path / "swin.pth")


def test_missing_and_unexpected_keys_are_named(tmp_path, glnet_weights):
    weights = dict(glnet_weights)
    weights["extra.weight"] = torch.zeros(3)
    del weights["norm.weight"]
    torch.save(weights, tmp_path / "their.pth")
    model = timm.create_model("glnet_stl")
    before = snapshot(model)
    with pytest.raises(saccade.CheckpointError, match=r"1 missing: norm\.weight; 1 unexpected: extra\.weight"):
        saccade.load_official(model, tmp_path / "their.pth")
    assert unchanged(model, before)
    report = saccade.load_official(model, tmp_path / "their.pth", strict=False)
    assert (report.missing, report.unexpected) == (["norm.weight"], ["extra.weight"])
    assert not torch.equal(model.head.weight, before["head.weight"])


@pytest.mark.parametrize("keep", [0, 10, 5000, 0.5, 0.999])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_truncated_files_are_refused_and_nothing_is_loaded(tmp_path, glnet_weights, keep, suffix):
    whole = tmp_path / f"whole{suffix}"
    if suffix == ".pth":
        torch.save(glnet_weights, whole)
    else:
        safetensors.torch.save_file({k: v.contiguous() for k, v in glnet_weights.items()}, whole)
    content = whole.read_bytes()
    torn = tmp_path / f"torn{suffix}"
    torn.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    model = timm.create_model("glnet_stl")
    before = snapshot(model)
    with pytest.raises(saccade.CheckpointError, match=f"torn{suffix}"):
        saccade.load_official(model, torn)
    assert unchanged(model, before)


@pytest.mark.parametrize(
    "content", [b"", b"<html>404</html>", b"\x89PNG\r\n\x1a\n" + bytes(100), pickle.dumps([1, 2, 3])], ids=range(4)
)
def test_files_that_are_no_checkpoint_are_refused(tmp_path, content):
    path = tmp_path / "odd.pth"
    path.write_bytes(content)
    with pytest.raises(saccade.CheckpointError, match=r"odd\.pth"):
        saccade.load_official(timm.create_model("sot_7"), path)


@pytest.mark.parametrize(
    "content", [{}, {"model": {}}, {"epoch": 3}, {"model": 4}, [1, 2], {"a": {"b": torch.zeros(1)}}]
)
def test_files_without_weights_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "odd.pth")
    with pytest.raises(saccade.CheckpointError, match="expected"):
        saccade.load_official(timm.create_model("sot_7"), tmp_path / "odd.pth")


class Bomb:
    def __reduce__(self):
        return (open, ("exploded", "w"))


def test_code_in_a_file_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {"a": torch.zeros(1)}, "extra": Bomb()}, tmp_path / "bomb.pth")
    with pytest.raises(saccade.CheckpointError, match=r"would run code when loaded \(.*open"):
        saccade.load_official(timm.create_model("sot_7"), tmp_path / "bomb.pth")
    assert not (tmp_path / "exploded").exists()


def test_missing_file_and_wrong_model_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        saccade.load_official(timm.create_model("sot_7"), tmp_path / "none.pth")
    with pytest.raises(TypeError, match="saccade backbone, got ResNet"):
        saccade.load_official(timm.create_model("resnet18"), tmp_path / "none.pth")


def test_input_state_dict_is_left_as_it_was(glnet_weights):
    before = {k: v.clone() for k, v in glnet_weights.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timm.create_model("glnet_stl").load_state_dict(glnet_weights)
    assert glnet_weights.keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in glnet_weights.items())
