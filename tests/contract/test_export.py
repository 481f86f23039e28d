"""Every backbone and every plug-in on a ViT, exported: the same logits as the eager model, for three sizes."""

import re
import zipfile

import pytest
import timm
import torch

from saccade import plugins
from saccade.data.spec import InputSpec
from saccade.deployment.bundle import Bundle
from saccade.deployment.graph import WithPreprocessing, trace, write_onnx, write_program
from saccade.deployment.predictor import OnnxPredictor, ProgramPredictor
from saccade.deployment.verify import compare
from saccade.plugins import (
    ContextBroadcast,
    ExtraBlock,
    LoRA,
    SecondOrderHead,
    SqueezeExcite,
    TokenEmbedding,
    UniformHead,
    attach,
)
from support.backbones import NAMES, shallow
from support.images import pixels

SIZES = ((64, 64), (97, 131), (160, 96))
SMALL = {  # one of each family, with as little depth as shows its kinds of block
    "cvt_13": {"depths": (1, 1, 1)},
    "glnet_nano": {"dims": (32, 64), "depths": (1, 1), "pattern": ("G", "A")},
    "nommer_tiny": {"depths": (1, 0, 0, 1), "embed_dim": 32},
    "sot_7": {"depth": 1},
    "t2t_vit_7": {"depth": 1},
}
PLUGINS = {
    "none": lambda: None,
    "broadcast": ContextBroadcast,
    "broadcast_scale": lambda: ContextBroadcast(scale=True),
    "extra_block": ExtraBlock,
    "extra_mlp": lambda: ExtraBlock(kind="mlp"),
    "lora": LoRA,
    "second_order": lambda: SecondOrderHead(num_classes=5),
    "squeeze": SqueezeExcite,
    "token_embedding": TokenEmbedding,
    "uniform": UniformHead,
    "uniform_b": lambda: UniformHead("B"),
    "uniform_c": lambda: UniformHead("C"),
}
USUAL = ("second_order",)  # the one whose graph is most unlike a plain one
MEAN, STD = [0.5, 0.45, 0.4], [0.2, 0.25, 0.3]


def slow_unless(usual, *values):
    return pytest.param(*values, marks=[] if usual else [pytest.mark.slow])


def stirred(model):
    """Add noise to all weights: what starts as nothing would be compared as nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


def assert_exports_alike(model, tmp_path, *, img_size, sizes=SIZES):
    """Export a model both ways and compare for images of every size, with one image and with five."""
    spec = InputSpec(("a",) * 5, 3, img_size, MEAN, STD)
    asked = WithPreprocessing(model, spec).eval()
    program = trace(asked)
    bundle = Bundle.of(model, spec, name="model", any_size=True, raw=True)
    write_onnx(program, tmp_path / "model.onnx", bundle)
    write_program(program, tmp_path / "model.pt2", bundle)
    photographs = torch.stack([torch.tensor(pixels(n, img_size, img_size)).permute(2, 0, 1) for n in range(10)])
    onnx = OnnxPredictor(tmp_path / "model.onnx", framed=False)
    for opened in (onnx, ProgramPredictor(tmp_path / "model.pt2", trust=True)):
        parity = compare(asked.outputs, opened.outputs, photographs, sizes, spec)
        assert parity.difference < 1e-4, opened.kind
        assert parity.same == 1.0
        assert parity.scale > 1e-3  # logits that are all nothing would agree
        assert opened.bundle == bundle


@pytest.mark.parametrize("name", [slow_unless(name == "glnet_nano", name) for name in SMALL])
def test_every_family_exports_for_any_size(name, tmp_path):
    model = timm.create_model(name, num_classes=5, **SMALL[name])
    assert_exports_alike(stirred(model), tmp_path, img_size=64)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_backbone_exports_for_any_size(name, tmp_path):
    assert_exports_alike(stirred(shallow(name, num_classes=5)), tmp_path, img_size=64)


@pytest.mark.parametrize(
    ("name", "side"),
    [slow_unless(side == 32 and name in USUAL, name, side) for name in PLUGINS for side in (32, 48, 64)],
)
def test_every_plugin_on_a_vit_exports_at_each_size(name, side, tmp_path):
    size = {"img_size": side, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **size)
    if (plugin := PLUGINS[name]()) is not None:
        attach(model, plugin)
    assert_exports_alike(stirred(model), tmp_path, img_size=side)


def test_every_plugin_is_among_those_exported():
    known = {name for name in plugins.__all__ if hasattr(getattr(plugins, name), "install")}
    assert known == {type(made).__name__ for make in PLUGINS.values() if (made := make()) is not None}


def test_exported_files_hold_no_paths_of_the_machine(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32, patch_size=16, embed_dim=24, depth=1)
    spec = InputSpec(("a",) * 5, 3, 32, MEAN, STD)
    program = trace(WithPreprocessing(model, spec).eval())
    bundle = Bundle.of(model, spec, name="model")
    write_onnx(program, tmp_path / "model.onnx", bundle)
    write_program(program, tmp_path / "model.pt2", bundle)
    contents = {"onnx": (tmp_path / "model.onnx").read_bytes()}
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        contents |= {name: archive.read(name) for name in archive.namelist()}
    for name, content in contents.items():
        assert not re.search(rb"site-packages|\.py\b", content), name
