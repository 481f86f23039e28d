"""GLNet against its published code and the paper's tables: logits, sizes, first weights, conversion."""

from functools import cache
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from saccade.models.glnet import GLNet
from support.golden import Case, case, read, relative_error, strided

GOLDEN = {
    "glnet_stl": "glnet_stl",
    "glnet_stl_paramslot": "glnet_stl_paramslot",
    "glnet_4g": "glnet_4g",
    "glnet_4g_tklb": "glnet_4g_tl",
}


@cache
def published(name: str) -> tuple[GLNet, dict[str, Tensor]]:
    """Our model with a published one's weights, in float32, and the features that taps hear."""
    model = timm.create_model(GOLDEN[name]).eval()
    model.load_state_dict(case(name, "97x131").state_dict())
    heard: dict[str, Tensor] = {}
    first = model.stages[0].blocks[0]
    modules = {
        "down0": model.stem,
        "s0.b0.norm1": first.norm1,
        "s0.b0.relation_mha": first.mixer.global_branch.attn,
        "s0.b0.feature_conv": first.mixer.local_branch,
        "s0.b0.mlp": first.mlp,
        "s2.b1": model.stages[2].blocks[1],
        **{f"down{i}": model.stages[i].downsample for i in (1, 2, 3)},
        **{f"s{i}.out": stage for i, stage in enumerate(model.stages)},
        "norm": model.norm,
    }
    for tap, module in modules.items():
        module.register_forward_hook(lambda _, __, out, tap=tap: heard.update({tap: out}))
    return model, heard


def as_published(tap: str, x: Tensor, stage: Tensor) -> Tensor:
    """Blocks and what is in them speak B, H * W, C or B, H, W, C here and B, C, H, W there, but for tokens."""
    if ".b" not in tap or tap.endswith("relation_mha"):
        return x
    return x.reshape(len(x), *stage.shape[2:], -1).permute(0, 3, 1, 2)


def published_cases() -> list[Any]:
    ids = [(name, record["id"]) for name in GOLDEN for record in read(name)[0]["cases"]]
    return [pytest.param(n, i, marks=[pytest.mark.slow] if i == "256x320" else []) for n, i in ids]


@pytest.mark.parametrize(("name", "id"), published_cases())
def test_logits_equal_published_ones(name: str, id: str) -> None:
    model, _ = published(name)
    golden: Case = case(name, id)
    with torch.no_grad():
        assert relative_error(model(golden.input()), golden.logits) < 1e-5


@pytest.mark.parametrize("name", GOLDEN)
def test_logits_and_features_equal_published_ones_in_double(name: str) -> None:
    model, heard = published(name)
    golden = case(name, "97x131")
    try:
        with torch.no_grad():
            logits = model.double()(golden.input().double())
    finally:
        model.float()
    assert relative_error(logits, golden.logits) < 1e-9
    for tap, value in heard.items():
        published_value = as_published(tap, value, heard.get(f"{tap[:2]}.out", value))
        assert relative_error(strided(published_value), golden.feature(tap)) < 1e-9, tap


def meta_model(name: str, **options: Any) -> GLNet:
    with torch.device("meta"):
        return timm.create_model(name, **options).eval()


def count_params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def count_gmacs(model: nn.Module) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.empty(1, 3, 224, 224, device="meta"))
    return counter.get_total_flops() / 2e9


@pytest.mark.parametrize(
    ("name", "params", "gmacs"),
    [
        ("glnet_stl", 30_296_786, 4.3474),
        ("glnet_stl_paramslot", 30_481_106, 4.3474),
        ("glnet_4g", 27_001_593, 4.4821),
        ("glnet_9g", 60_010_617, 9.5882),
        ("glnet_16g", 106_055_161, 16.6042),
        ("glnet_4g_tl", 27_514_593, 4.5072),
        ("glnet_9g_tl", 60_779_617, 9.6258),
    ],
)
def test_size_and_cost_equal_published_ones(name: str, params: int, gmacs: float) -> None:
    model = meta_model(name)
    assert count_params(model) == params
    assert count_gmacs(model) == pytest.approx(gmacs, abs=5e-5)


@pytest.mark.parametrize(
    ("options", "params", "gmacs"),
    [
        ({"mixer": "local"}, 26.4, 3.8),
        ({"mixer": "global"}, 28.3, None),
        ({"mixer": "global_local"}, 30.3, None),
        ({"mixer": "local_global"}, 30.3, None),
        ({"local": "window"}, 32.2, 5.0),
        ({"clustering": "kmeans"}, 30.3, None),
        ({"slots": "learned"}, 30.5, None),
        ({"kernel_size": 7}, 30.4, None),  # printed on the line of kernel 3
        ({"kernel_size": 3}, 30.3, None),  # printed on the line of kernel 7
        ({"num_slots": 9}, 30.3, 3.9),
        ({"num_slots": 81}, 30.3, 4.5),
    ],
)
def test_ablations_weigh_what_the_paper_says_in_table_6(
    options: dict[str, Any], params: float, gmacs: float | None
) -> None:
    model = meta_model("glnet_stl", **options)
    assert count_params(model) / 1e6 == pytest.approx(params, abs=0.051)
    assert gmacs is None or count_gmacs(model) == pytest.approx(gmacs, abs=0.051)


def test_steps_from_stl_to_4g_weigh_what_the_paper_says_in_table_7() -> None:
    options: dict[str, Any] = {}
    for step, params in (
        ({"overlap": True}, 32.3),
        ({"pattern": ("G", "G", "GA", "A")}, 31.4),
        ({"pos_conv": True}, 31.4),
        ({"dims": (64, 128, 256, 512), "depths": (4, 4, 18, 4), "mlp_ratio": 3}, 26.8),
        ({"conv_mlp": True}, 27.0),
    ):
        options |= step
        assert count_params(meta_model("glnet_stl", **options)) / 1e6 == pytest.approx(params, abs=0.051)


@torch.no_grad()
def test_initial_weights_follow_the_published_code() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model("glnet_stl", depths=(1, 1, 1, 1), slots="learned")
    block, last = model.stages[2].blocks[0], model.stages[3].blocks[0]
    slots = block.mixer.global_branch
    xavier = (6 / (4 * 384)) ** 0.5
    assert slots.attn.qkv.weight.abs().max() <= xavier
    assert slots.attn.qkv.weight.std() == pytest.approx(xavier / 3**0.5, rel=0.02)
    for linear in (slots.attn.proj, last.mixer.attn.proj, last.mlp.fc1, last.mlp.fc2, model.head):
        assert linear.weight.std() == pytest.approx(0.02, rel=0.05)
        assert not linear.bias.any()
    for conv in (block.mixer.local_branch.pointwise1, block.mlp.fc1):  # 1x1 convolutions in the published code
        bound = conv.in_features**-0.5
        assert conv.weight.std() == pytest.approx(bound / 3**0.5, rel=0.02)
        assert conv.bias.abs().max() > bound / 2
    assert slots.init_slots.std() == pytest.approx(0.02, rel=0.05)
    assert float(slots.scale) == pytest.approx(384**-0.5)


def test_published_weights_are_converted_without_touching_them() -> None:
    golden = case("glnet_4g_tklb", "97x131").state_dict()
    before = dict(golden)
    labelled, plain = meta_model("glnet_4g_tl"), meta_model("glnet_4g")
    converted = labelled.convert(golden)
    assert {k: v.shape for k, v in converted.items()} == {k: v.shape for k, v in labelled.state_dict().items()}
    assert all(golden[k] is v for k, v in before.items())
    assert golden.keys() == before.keys()
    assert labelled.convert(converted) == converted
    unexpected = plain.convert(golden).keys() - plain.state_dict().keys()
    assert unexpected == {"tklb_aux_head.weight", "tklb_aux_head.bias"}


def test_converted_layer_scale_fits() -> None:
    model = meta_model("glnet_16g", depths=(1, 1, 1, 1))
    prefix = "stages.1.blocks.0."
    published = {"downsample_layers.1.0.bias": torch.zeros(256), prefix + "ls1.gamma": torch.ones(1, 256, 1, 1)}
    converted = model.convert(published)
    assert converted[prefix + "ls1.gamma"].shape == model.state_dict()[prefix + "ls1.gamma"].shape
    assert "stages.1.downsample.conv.bias" in converted
