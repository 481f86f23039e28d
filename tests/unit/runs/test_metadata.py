import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from saccade.building.build import build_model, load_model
from saccade.data.spec import InputSpec
from saccade.deployment.bundle import Bundle, ExportError
from saccade.models import CheckpointError
from saccade.models._constructors import constructor_options
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig
from saccade.support.files import sort_header
from support.exports import BUNDLE, tiny_run


@pytest.fixture
def file(tmp_path):
    return tiny_run(tmp_path / "run") / "model.safetensors"


def rewrite(file, change):
    """Let a file of weights say something else of itself."""
    with safe_open(file, framework="pt") as opened:
        about = json.loads(opened.metadata()["saccade"])
    change(about)
    save_file(load_file(file), file, metadata={"saccade": json.dumps(about)})


OPENING = {
    "checkpoint_path": "/tmp/x.pth",
    "pretrained": True,
    "pretrained_cfg": {"url": "http://127.0.0.1:9/x.pth"},
    "pretrained_cfg_overlay": {"file": "/tmp/x.pth"},
    "cache_dir": "/tmp",
    "features_only": True,
    "pruned": True,
    "kwargs_filter": ["num_classes"],
    "scriptable": True,
}


@pytest.mark.parametrize("option", OPENING)
def test_weights_cannot_name_an_option_that_is_no_argument_of_the_models_constructor(file, option, monkeypatch):
    def change(about):
        about["model"]["options"][option] = OPENING[option]

    rewrite(file, change)
    monkeypatch.setattr(timm, "create_model", lambda *_, **options: pytest.fail(f"built with {options}"))
    with pytest.raises(CheckpointError, match=f"model.options has '{option}', which is not an argument"):
        load_model(file)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("img_size",), -5, "img_size = -5; it must be a whole number from 1"),
        (("img_size",), 2.5, "img_size = 2.5"),
        (("mean",), "abc", "mean = 'abc'; it must be a list of numbers"),
        (("mean",), [0.5, float("nan"), 0.5], "mean = "),
        (("std",), [0.5, 0.0, 0.5], "std = .*above 0"),
        (("std",), [0.5], "std = "),
        (("outputs",), [], "outputs = "),
        (("outputs",), "ab", "outputs = 'ab'"),
        (("outputs",), ["a", "b", 3], "not strings"),
        (("task",), 5, "task must be a name"),
        (("task",), "paint", "unknown task 'paint'"),
        (("extra",), [1], "extra a mapping of names to values"),
        (("in_chans",), 7, "in_chans = 7"),
        (("shorter",), 1, "shorter = 1"),
        (("model",), "vit_tiny", "model = 'vit_tiny'"),
        (("model", "name"), "hf-hub:stranger/vit_tiny", "unknown model"),
        (("model", "name"), 5, "name = 5"),
        (("model", "pretrained"), True, "model.pretrained = True"),
        (("model", "checkpoint"), "/etc/passwd", "model.checkpoint = "),
        (("model", "secret"), 1, "unknown setting 'secret'"),
        (("model", "options", "depth"), "many", "model.options.depth = 'many'"),
        (("model", "options", "depth"), 10**9, "model.options.depth"),
        (("model", "options", "depth"), 10**5, "far more memory than its weights"),
        (("model", "options", "embed_dim"), 2**20, "far more memory than its weights"),
        (("model", "options", "num_heads"), 0, "by zero"),
        (("model", "options", "num_heads"), 7, ""),
        (("model", "options", "block_fn"), "os.system", "model.options.block_fn"),
        (("model", "plugins"), ["none"], "unknown plug-in 'none'"),
        (("model", "plugins"), ["broadcast"] * 1000, "1000 plug-ins"),
    ],
)
def test_what_no_training_writes_is_told_with_the_file(file, path, value, told):
    def change(about):
        for name in path[:-1]:
            about = about[name]
        about[path[-1]] = value

    rewrite(file, change)
    with pytest.raises(CheckpointError, match=f"{file} describes a model that cannot be built: .*{told}"):
        load_model(file)


@pytest.mark.parametrize("name", ["model", "outputs", "in_chans", "img_size", "mean", "std"])
def test_what_is_missing_is_named(file, name):
    rewrite(file, lambda about: about.pop(name))
    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        load_model(file)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "5", "{", "null"])
def test_text_that_is_no_description_is_told(file, text):
    save_file(load_file(file), file, metadata={"saccade": text})
    with pytest.raises(CheckpointError, match="was not written by saccade"):
        load_model(file)


def test_a_pipe_in_the_place_of_weights_is_not_waited_for(file):
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_model(file.parent)


def test_options_that_say_where_weights_came_from_are_not_written(tmp_path):
    spec = InputSpec(("a", "b"), 3, 32, [0.5] * 3, [0.5] * 3)
    options = {"depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8}
    model = build_model(ModelConfig(name="vit_tiny", options=options), spec, seed=0)
    given = ModelConfig(name="vit_tiny", options={**options, "checkpoint_path": "/home/me/weights.pth"})
    save_model(tmp_path / "model.safetensors", model.state_dict(), given, spec)
    assert load_model(tmp_path)[0].embed_dim == 24


def test_no_registered_model_has_a_constructor_that_opens_a_file():
    forbidden = {"checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}
    for name in timm.list_models():
        allowed = constructor_options(name)
        assert allowed
        assert not forbidden & allowed.keys()


@pytest.mark.parametrize("name", ["glnet_nano", "nommer_tiny", "sot_7", "resnet18", "convnext_atto", "swin_tiny"])
def test_models_of_every_family_come_back(tmp_path, name):
    spec = InputSpec(("a", "b"), 3, 224, [0.5] * 3, [0.5] * 3)
    config = ModelConfig(name=name)
    save_model(tmp_path / "model.safetensors", build_model(config, spec, seed=0).state_dict(), config, spec)
    load_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", "abc"),
        ("mean", [float("inf")] * 3),
        ("std", [0, 1, 1]),
        ("img_size", -5),
        ("img_size", True),
        ("channels", 2),
        ("precision", 8),
        ("any_size", "yes"),
        ("raw", 1),
        ("versions", [1, 2]),
        ("classes", []),
    ],
)
def test_bundles_that_no_export_writes_are_refused(name, value):
    about = json.loads(BUNDLE.to_json()) | {name: value}
    with pytest.raises(ExportError, match="its description is damaged"):
        Bundle.from_json(json.dumps(about), source="model.onnx")


@pytest.mark.slow
def test_the_same_weights_are_the_same_bytes_in_every_process(tmp_path):
    code = "import sys; from pathlib import Path; from support.exports import tiny_run; tiny_run(Path(sys.argv[1]))"
    written = set()
    for number in range(4):  # the order of two entries is one of two
        tests = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        subprocess.run([sys.executable, "-c", code, tmp_path / str(number)], check=True, env=tests)
        written.add((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(written) == 1


def test_a_header_in_another_order_is_sorted_and_read_as_before(tmp_path):
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(3, dtype=torch.bfloat16)}
    seen = set()
    for _ in range(20):
        save_file(tensors, tmp_path / "x", metadata={"format": "pt", "saccade": '{"ä": "\\n\\u0001 \u2713"}'})
        sort_header(tmp_path / "x")
        seen.add((tmp_path / "x").read_bytes())
        with safe_open(tmp_path / "x", framework="pt") as opened:
            assert opened.metadata() == {"format": "pt", "saccade": '{"ä": "\\n\\u0001 \u2713"}'}
            assert torch.equal(opened.get_tensor("b"), tensors["b"])
    assert len(seen) == 1
