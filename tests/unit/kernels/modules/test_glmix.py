"""GLMix blocks around kernels give what plain blocks give, with the operators replaced by their references."""

import copy
import pickle
from collections import Counter

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from saccade.kernels import apply, precision
from saccade.kernels.fused import Fused, plain_class
from saccade.kernels.modules.glmix import FusedBlock
from saccade.kernels.modules.slots import FusedSlotMixer
from saccade.kernels.ops import attention, cluster, norm
from saccade.layers.glmix import Block, GLMix, MapAttention
from support.interpreter import not_interpreted
from support.kernels import by_references, swap, takes_every_call, undo

ROWS = ("unpadded", "slots", "attention", "depthwise", "gelu", "block")


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def mixer(**options):
    return GLMix(16, num_heads=2, num_slots=4, **options)


MIXERS = {
    "attention": lambda: MapAttention(16, num_heads=2),
    "parallel": mixer,
    "constant": lambda: mixer(slot_scale="constant"),
    "learned": lambda: mixer(slots="learned"),
    "kmeans": lambda: mixer(clustering="kmeans"),
    "local": lambda: mixer(mixer="local"),
    "global": lambda: mixer(mixer="global"),
    "local_global": lambda: mixer(mixer="local_global"),
    "global_local": lambda: mixer(mixer="global_local"),
    "window": lambda: mixer(local="window", window_size=2),
}
IN_OTHERS = ("local", "global", "global_local")  # their branches are compiled side by side and in one order elsewhere
CHANGES = ("", "scaled", "frozen", "half frozen", "listened", "norm listened", "foreign", "without convolutions")


def block_of(kind, changed="", dtype=torch.float64):
    torch.manual_seed(0)
    convolutions = {"pos_conv": changed != "without convolutions", "conv_mlp": changed != "without convolutions"}
    scale = 0.5 if changed == "scaled" else None
    block = Block(16, MIXERS[kind](), mlp_ratio=2, layer_scale=scale, **convolutions).to(dtype)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    if "frozen" in changed:
        for i, parameter in enumerate(block.parameters()):
            parameter.requires_grad_(changed == "half frozen" and i % 2 == 0)
    elif "listened" in changed:
        heard = block.norm2 if changed.startswith("norm") else block.mlp
        heard.register_forward_hook(lambda module, given, out: 2 * out)
    elif changed == "foreign":  # attention by a module of somebody else
        getattr(block.mixer, "global_branch", block.mixer).attn = nn.Linear(16, 16).to(dtype)
    return block


def given(dtype=torch.float64):
    return torch.randn(3, 16, 16, dtype=dtype, requires_grad=True)


def passed(block, x, **autocast):
    wrt = [x, *(one for one in block.parameters() if one.requires_grad)]
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)):
        out = block(x, (4, 4))
    return out.detach(), *torch.autograd.grad(out, wrt, torch.cos(out.detach()), allow_unused=True)


def near(dtype):
    return {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("kind", MIXERS)
def test_a_block_has_the_plain_outputs_and_gradients(monkeypatch, kind, changed, dtype):
    block, x = block_of(kind, changed, dtype), given(dtype)
    want = passed(block, x)
    called = by_references(monkeypatch)
    takes_every_call(monkeypatch)
    swapped = swap(block, *ROWS)
    torch.testing.assert_close(passed(block, x), want, **near(dtype))
    if "listened" not in changed:
        assert called["join"] == 2
        assert called["join_back"] == 2
    undo(swapped)
    assert all(torch.equal(a, b) for a, b in zip(passed(block, x), want, strict=True) if a is not None)


@pytest.mark.parametrize("dtype", [torch.float64, slow(torch.float32)])
@pytest.mark.parametrize("kind", [one for one in MIXERS if one not in IN_OTHERS] + [slow(one) for one in IN_OTHERS])
def test_a_compiled_block_has_the_plain_outputs_and_gradients(monkeypatch, kind, dtype):
    block, x = block_of(kind, dtype=dtype), given(dtype)
    want = passed(block, x)
    by_references(monkeypatch, counted=False)
    takes_every_call(monkeypatch)
    swap(block, *ROWS)
    torch.compiler.reset()
    got = passed(torch.compile(block, backend="aot_eager", fullgraph=True), x)
    torch.testing.assert_close(got, want, **near(dtype))


@pytest.mark.parametrize("left_out", ROWS)
@pytest.mark.parametrize("kind", ["attention", "parallel", "window"])
def test_each_row_can_be_left_out_alone(monkeypatch, kind, left_out):
    block, x = block_of(kind), given()
    want = passed(block, x)
    called = by_references(monkeypatch)
    takes_every_call(monkeypatch)
    swap(block, *(row for row in ROWS if row != left_out))
    torch.testing.assert_close(passed(block, x), want, **near(x.dtype))
    operators = {"attention": "attend", "depthwise": "convolve", "block": "join", "slots": "gather"}
    for row, operator in operators.items():
        has = row != "slots" or kind != "attention"
        base = row == "slots" and left_out == "unpadded"  # which the ones for slots stand on
        assert (called[operator] > 0) == (has and left_out != row and not base), operator


@pytest.mark.parametrize("row", ROWS)
def test_each_row_serves_alone(monkeypatch, row):
    block, x = block_of("parallel"), given()
    want = passed(block, x)
    by_references(monkeypatch)
    takes_every_call(monkeypatch)
    assert swap(block, "unpadded", row) or row == "gelu"
    torch.testing.assert_close(passed(block, x), want, **near(x.dtype))


def test_biases_are_summed_where_the_output_is_read(monkeypatch):
    block, x = block_of("parallel"), given()
    by_references(monkeypatch)
    takes_every_call(monkeypatch)
    swap(block, *ROWS)
    sums = []
    linear = nn.functional.linear
    monkeypatch.setattr(nn.functional, "linear", lambda x, w, b: sums.append(b.requires_grad) or linear(x, w, b))
    block(x, (4, 4))
    assert sums == 6 * [False]


@pytest.mark.parametrize("kind", MIXERS)
def test_weights_are_converted_once_a_block(monkeypatch, kind):
    def convert(tensors, dtype):
        lists.append(len(list(tensors)))
        return tuple(x.to(dtype) for x in tensors)

    block, x = block_of(kind, dtype=torch.float32), given(torch.float32)
    want = passed(block, x, on=True)
    swap(block, *(row for row in ROWS if row != "slots"))
    lists: list[int] = []
    monkeypatch.setattr(FusedBlock, "takes", lambda *_: True)
    monkeypatch.setattr(precision, "converts", lambda _: True)
    monkeypatch.setattr(precision, "convert", convert)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    got = passed(block, x, on=True)
    assert len(lists) == 3  # matrices, biases, gradients of matrices
    for a, b in zip(got, want, strict=True):
        assert a is b is None or torch.equal(a, b)


def test_names_pickles_and_copies_stay(monkeypatch):
    block, x = block_of("parallel"), given()
    want = passed(block, x)
    names, parameters = list(block.state_dict()), dict(block.named_parameters())
    swap(block, *ROWS)
    assert list(block.state_dict()) == names
    assert all(parameter is parameters[name] for name, parameter in block.named_parameters())
    assert type(block) is FusedBlock
    assert type(block.mixer.global_branch) is FusedSlotMixer
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert [type(m) for m in other.modules()] == [type(m) for m in block.modules()]
        assert all(torch.equal(a, b) for a, b in zip(passed(other, x), want, strict=True))  # on the CPU all is plain


def test_a_class_that_stands_on_others_stands_for_the_plain_one():
    block = block_of("parallel")
    plain = [type(m) for m in block.modules()]
    swap(block, *ROWS)
    assert [plain_class(type(m)) for m in block.modules()] == plain
    assert any(isinstance(m, Fused) for m in block.modules())


def test_inference_by_kernels_equals_the_plain_one(monkeypatch):
    block, x = block_of("parallel"), given()
    with torch.no_grad():
        want = block(x, (4, 4))
        called = by_references(monkeypatch)
        takes_every_call(monkeypatch)
        monkeypatch.setattr(norm, "serves", lambda *_: False)
        swap(block, *ROWS)
        torch.testing.assert_close(block(x, (4, 4)), want)
    assert called["convolve"] == 3


@not_interpreted
@pytest.mark.parametrize(("kind", "gathers"), [("parallel", 1), ("attention", 0)])
def test_a_block_compiled_for_training_on_a_gpu_reaches_every_kernel(monkeypatch, kind, gathers):
    def look(graph, _):
        for inner in graph.modules():
            if isinstance(inner, torch.fx.GraphModule):
                targets = [str(node.target) for node in inner.graph.nodes]
                called.update(target.split(".")[1] for target in targets if target.startswith("saccade."))
                called.update("convert" for target in targets if "_foreach_mul" in target)
        return graph.forward

    called: Counter = Counter()
    for home in (attention, cluster):
        monkeypatch.setattr(home, "shared_memory", lambda _: 232_448)
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, **_: tensor)  # looks at numbers, which fakes lack
    torch.compiler.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            block = Block(16, MIXERS[kind](), mlp_ratio=2, pos_conv=True, conv_mlp=True)
            x = torch.empty(3, 64, 16, dtype=torch.bfloat16, requires_grad=True)
        handle = apply(block, "train", "auto")
        torch.set_autocast_enabled("cuda", True)
        try:
            torch.compile(block, backend=look, fullgraph=True, dynamic=False)(x, (8, 8))
        finally:
            torch.set_autocast_enabled("cuda", False)
    assert {"block", "depthwise", "attention"} <= set(handle.names)
    assert called["join"] == called["join_back"] == 2
    assert called["depthwise_conv_gradients"] == 2 + gathers
    assert called["attention_forward"] == 1
    assert called["convert"] == 3  # matrices, biases, gradients of matrices
    assert called["gather_slots"] == called["scatter_slots_back"] == gathers


@not_interpreted
def test_a_block_compiled_for_inference_under_autocast_converts_its_weights_at_once(monkeypatch):
    called: Counter = Counter()

    def look(graph, _):
        called.update(str(node.target) for node in graph.graph.nodes if "_foreach_mul" in str(node.target))
        return graph.forward

    monkeypatch.setattr(cluster, "shared_memory", lambda _: 232_448)
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, **_: tensor)  # looks at numbers, which fakes lack
    torch.compiler.reset()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with torch.device("cuda"):
            block = Block(16, MIXERS["attention"](), mlp_ratio=2, pos_conv=True, conv_mlp=True)
            x = torch.empty(3, 64, 16)
        apply(block, "infer", "auto")
        torch.set_autocast_enabled("cuda", True)
        try:
            torch.compile(block, backend=look, fullgraph=True, dynamic=False)(x, (8, 8))
        finally:
            torch.set_autocast_enabled("cuda", False)
    assert sum(called.values()) == 2  # matrices, biases
