"""What builds a model arrives in its file: opened again it answers as the task's own, or it is not trained."""

import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

import saccade
from saccade.building.build import build_model, load_model
from saccade.data.spec import InputSpec
from saccade.models._constructors import constructor_options
from saccade.models.cvt import CvT
from saccade.models.glnet import GLNet
from saccade.models.nommer import NomMer
from saccade.models.sot import SoT
from saccade.models.t2t import T2TViT
from saccade.plugins import PLUGINS
from saccade.runs.metadata import takes
from saccade.runs.weights import save_model
from saccade.settings import ConfigError, ModelConfig
from saccade.settings.registry import option_hints
from saccade.settings.values import choices
from saccade.tasks import Task
from saccade.tasks.detection.detector import HEADS as DETECTORS
from saccade.tasks.segmentation import HEADS

CLASSES = ("a", "b", "c")
SOT = {"depth": 1, "embed_dim": 16, "num_heads": 2, "cov_heads": 2, "cov_dim": 4, "token_embed": "linear"}
GLNET = {"dims": [16, 32], "depths": [1, 1], "pattern": ["G", "A"], "num_slots": 4, "num_heads": [2, 2]}
SMALL: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "sot_7": (SoT, SOT),
    "glnet_nano": (GLNet, GLNET),
    "nommer_tiny": (NomMer, {"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 2, 2]}),
    "cvt_13": (CvT, {"dims": [16, 24, 32], "depths": [1, 1, 1], "num_heads": [1, 1, 1], "head_dim": 16}),
    "t2t_vit_7": (T2TViT, {"embed_dim": 16, "depth": 1, "num_heads": 2, "token_dim": 8}),
}
# What a value is only an option beside.
BESIDE: dict[tuple[str, Any], dict[str, Any]] = {
    ("normalization", "isqrt"): {"pooling": "gcp"},
    ("normalization", "power"): {"pooling": "gcp"},
    ("divisor", "tokens"): {"pooling": "gcp"},
    ("divisor", "channels"): {"pooling": "gcp"},
    ("epn_axis", "vector"): {"normalization": "epn"},
    ("positive", True): {"normalization": "sqrt_t"},
    ("late", "scores"): {"fusion": "late"},
    ("num_iter", 5): {"pooling": "gcp"},
    ("dense_norm", True): {"token_embed": "densenet"},
    ("clustering", "kmeans"): {"slots": "pool"},
}
# Values of options whose hints list none, as docs name them.
NAMED: dict[str, dict[str, list[Any]]] = {
    "sot_7": {
        "alpha": [0.3], "num_sv": ["none", 2], "num_iter": [3, 5], "patch_size": [8], "mlp_ratio": [1.5],
        "centring": ["none", "channel"], "normalization": ["none", "layer_norm"],
        "pooling": ["none"], "class_token": ["none"], "start": ["ones"],
        "hidden_dim": [8], "num_prefix_tokens": [2], "rep_drop": [0.3], "drop_rate": [0.1],
        "attn_drop_rate": [0.1], "drop_path_rate": [0.1],
    },
    "glnet_nano": {
        "num_slots": [9], "kernel_size": [3], "window_size": [3], "layer_scale": [1e-4], "patch": [2],
        "global_pool": ["max"], "kmeans_iterations": [2], "mlp_ratio": [2.0],
        "drop_rate": [0.1], "drop_path_rate": [0.1],
    },
    "nommer_tiny": {
        "temperature": [0.5], "candidates": [["cnn", "window"]], "synergistic": [[True, True, True, True]],
        "global_pool": ["avg"], "window_size": [4], "dct_sizes": [[4, 4, 2, 1]],
        "mlp_ratios": [[1.0, 2.0, 2.0, 1.0]], "cnn_reduction": [2], "drop_rate": [0.1], "drop_path_rate": [0.1],
    },
    "cvt_13": {
        "kv_stride": [1], "mlp_ratio": [[1.0, 2.0, 3.0]], "global_pool": ["avg"],
        "drop_rate": [0.1], "drop_path_rate": [0.1],
    },
    "t2t_vit_7": {
        "global_pool": ["avg"], "token_drop_rate": [0.0], "mlp_ratio": [1.5],
        "drop_rate": [0.1], "attn_drop_rate": [0.1], "drop_path_rate": [0.1],
    },
}  # fmt: skip
VIT = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 8}
PLUGIN_VALUES: dict[str, dict[str, list[Any]]] = {
    "second_order": {
        "alpha": [0.3], "num_sv": ["none", 2], "num_iter": [3, 5], "head_dim": [5], "num_heads": [2], "hidden_dim": [8],
        "drop_rate": [0.2],
    },
    "broadcast": {"layers": [[0]]},
    "squeeze": {"reduction": [2], "layers": [[0]]},
    "uniform": {"layers": [[0]]},
    "lora": {"rank": [2], "alpha": [3.0], "drop_rate": [0.3], "targets": ["attention", ["qkv", "fc1"]]},
    "extra_block": {"num_heads": [1], "mlp_ratio": [1.5], "position": [1]},
    "token_embedding": {"path": ["patch_embed.proj"], "dim": [16], "stride": [8]},
}  # fmt: skip
OF_THE_DATA = {"img_size", "num_classes", "in_chans"}  # which the spec beside the weights gives
NO_CLASSIFIER = {("sot_7", "global_pool")}  # an option of models without classes alone
NOT_OF_A_VIT = [("tokens", "image"), ("tokens", "text"), ("spare_pyramid", True)]
SMALL_HEADS = {"width": 32, "inner": 32, "depth": 1, "convs": 1}
TRAINING: dict[str, Any] = {
    "data.train_limit": 32,
    "data.img_size": 32,
    "optim.batch_size": 16,
    "engine.device": "cpu",
    "engine.threads": 1,
}


def values_of(hints: Mapping[str, Any], named: Mapping[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    """Every value that hints list, true and false among them, and those named beside."""
    for option, hint in [*hints.items(), *((option, Any) for option in named if option not in hints)]:
        members = typing.get_args(hint) or (hint,)
        flags = [True, False] if bool in members else []
        for value in (*(v for v in choices(hint) if v is not None), *flags, *named.get(option, ())):
            yield option, value


def beside(option: str, value: Any) -> dict[str, Any]:
    return BESIDE.get((option, value), {}) if isinstance(value, str | bool | int) else {}


def cases() -> list[Any]:
    return [
        pytest.param(name, option, value, id=f"{name}-{option}-{value}")
        for name, (made, _) in SMALL.items()
        for option, value in values_of(option_hints(made), NAMED[name])
        if (option, value) != ("class_token", "last")  # of a causal model; SoT's is first
    ]


def disturb(model: nn.Module, images: torch.Tensor) -> None:
    """Move every parameter and running mean, as a step of training does."""
    torch.manual_seed(7)
    with torch.no_grad():
        model.train()(images)
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.eval()


def answers(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(images)


def kept_and_opened(config: ModelConfig, folder, *, task: str = "classify", **extra: Any) -> tuple[nn.Module, ...]:
    """Build, disturb, write and open a model; it answers as before."""
    spec = InputSpec(CLASSES, 3, 32, [0.5] * 3, [0.5] * 3, task=task, extra=extra)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model = build_model(config, spec, seed=0)
    disturb(model, images)
    save_model(folder / "model.safetensors", model.state_dict(), config, spec)
    opened, _ = load_model(folder)
    want = answers(model, images)
    assert want.isfinite().all()
    assert torch.equal(answers(opened, images), want)
    return model, opened


@pytest.mark.parametrize("name", SMALL)
def test_every_option_that_is_named_is_found(name):
    allowed = constructor_options(name)
    for option, values in NAMED[name].items():
        assert all(takes(value, allowed[option]) for value in values), option
    assert not {"checkpoint_path", "pretrained", "pretrained_cfg", "cache_dir"} & allowed.keys()


def test_no_option_is_left_without_a_case():
    for name, (made, small) in SMALL.items():
        hints = option_hints(made)
        asked = {option for option, _ in values_of(hints, NAMED[name])} | small.keys() | OF_THE_DATA
        assert {option for option in hints if option not in asked} == {o for n, o in NO_CLASSIFIER if n == name}, name
    for name, made in PLUGINS.items():
        if not (isinstance(made, type) and issubclass(made, Task)):
            hints = option_hints(made)
            assert hints.keys() <= {o for o, _ in values_of(hints, PLUGIN_VALUES.get(name, {}))} | OF_THE_DATA, name


@pytest.mark.parametrize(("name", "option", "value"), cases())
def test_every_value_of_every_option_is_built_again(name, option, value, tmp_path):
    options = {**SMALL[name][1], **beside(option, value), option: value}
    model, opened = kept_and_opened(ModelConfig(name=name, options=options), tmp_path)
    assert repr(opened) == repr(model)


def plugin_cases() -> list[Any]:
    found = []
    for name, made in PLUGINS.items():
        if isinstance(made, type) and issubclass(made, Task):
            continue
        for option, value in values_of(option_hints(made), PLUGIN_VALUES.get(name, {})):
            if (option, value) not in NOT_OF_A_VIT:
                found.append(pytest.param(name, option, value, id=f"{name}-{option}-{value}"))
    return found


@pytest.mark.parametrize(("plugin", "option", "value"), plugin_cases())
def test_every_value_of_every_option_of_a_plugin_is_built_again(plugin, option, value, tmp_path):
    given = {"head_dim": 4, **beside(option, value)} if plugin == "second_order" else {}
    given[option] = value
    text = ",".join(f"{key}={str(one).lower() if isinstance(one, bool) else one}" for key, one in given.items())
    config = ModelConfig(name="vit_tiny_patch16_224", options=VIT, plugins=[f"{plugin}:{text}"])
    model, opened = kept_and_opened(config, tmp_path)
    assert repr(opened) == repr(model)


@pytest.mark.parametrize(
    "value",
    [
        {"num_iter": 3, "class_token": "none"},
        pytest.param({"normalization": "layer_norm"}, marks=pytest.mark.slow),
        pytest.param({"pooling": "none"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_is_finetuned_with_the_options_it_was_trained_with(value, tmp_path):
    settings = {**TRAINING, "model.options": {**SOT, **value}}
    first = saccade.train(model="sot_7", epochs=1, out=tmp_path / "first", settings=settings, quiet=True)
    second = saccade.train(checkpoint=first.path, epochs=1, out=tmp_path / "second", settings=TRAINING, quiet=True)
    assert repr(load_model(second.path)[0]) == repr(load_model(first.path)[0])


def test_another_option_than_the_weights_were_trained_with_is_told(tmp_path, capsys):
    settings = {**TRAINING, "model.options": {**SOT, "num_iter": 3}}
    first = saccade.train(model="sot_7", epochs=1, out=tmp_path / "first", settings=settings, quiet=True)
    other = {**TRAINING, "model.options": {"num_iter": 1}}
    saccade.train(checkpoint=first.path, epochs=1, out=tmp_path / "second", settings=other)
    said = " ".join(capsys.readouterr().err.split())
    assert "model.options.num_iter = 1 was given; the weights were trained with 3" in said


# A builder's options and a layer's, what timm leaves out, what JSON changes, sizes that no file holds.
UNWRITABLE = [
    ({"group_size": 8}, "has 'group_size', which is not an argument of efficientnet_b0"),
    ({"features_only": True}, "has 'features_only'"),
    ({"scriptable": True}, "has 'scriptable'"),
    ({"drop_rate": None}, "drop_rate = null, which timm drops"),
    ({"drop_rate": "much"}, "drop_rate = 'much', which efficientnet_b0 does not accept"),
    ({"drop_rate": math.inf}, "drop_rate = inf"),
    ({"stem_size": 10**9}, "stem_size = 1000000000"),
    ({"block_args": {1: 2}}, "block_args"),
    ({"pretrained_cfg_overlay": {"global_pool": "max"}}, "pretrained_cfg_overlay sets global_pool"),
]


@pytest.mark.parametrize(("options", "told"), UNWRITABLE)
def test_what_a_file_cannot_say_is_refused_before_training(options, told, tmp_path, monkeypatch):
    monkeypatch.setattr("saccade.training.setup.build_model", lambda *_, **__: pytest.fail("built"))
    settings = {**TRAINING, "model.options": options}
    with pytest.raises(ConfigError, match=f"model.options.*{told}.*training does not start"):
        saccade.train(model="efficientnet_b0", out=tmp_path / "run", settings=settings, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_file_that_could_not_be_opened_is_never_written(tmp_path):
    spec = InputSpec(CLASSES, 3, 32, [0.5] * 3, [0.5] * 3)
    with pytest.raises(ConfigError, match="'group_size'"):
        save_model(tmp_path / "x", {}, ModelConfig(name="efficientnet_b0", options={"group_size": 8}), spec)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["segment", "detect"])
def test_every_head_is_built_again(task, tmp_path):
    for number, (name, made) in enumerate((HEADS if task == "segment" else DETECTORS).items()):
        options = [f"{key}={value}" for key, value in SMALL_HEADS.items() if key in option_hints(made)]
        config = ModelConfig(name="resnet18", head=f"{name}:{','.join(options)}" if options else name)
        spec = InputSpec(CLASSES, 3, 64, [0.5] * 3, [0.5] * 3, task=task)
        model = build_model(config, spec, seed=0).eval()
        (tmp_path / str(number)).mkdir()
        save_model(tmp_path / str(number) / "model.safetensors", model.state_dict(), config, spec)
        assert repr(load_model(tmp_path / str(number))[0]) == repr(model), name
