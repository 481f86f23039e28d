import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import timm
import torch
from torch import nn

import saccade
from saccade import ContextBroadcast, ExtraBlock, SqueezeExcite, UniformHead, attach
from saccade.settings import TrainConfig
from saccade.training import engine
from saccade.training.engine import compile_parts, repeated_blocks, torch_settings, uncompiled
from saccade.training.loop import Loop

HOSTS: dict[str, Callable[[], nn.Module]] = {
    "vit": partial(
        timm.create_model,
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        num_classes=10,
        embed_dim=24,
        depth=4,
        num_heads=3,
    ),
    "glnet": partial(  # blocks of both kinds, GLMix of two widths
        timm.create_model,
        "glnet_nano",
        num_classes=10,
        dims=(32, 64),
        depths=(1, 2),
        num_heads=(1, 2),
        pattern=("G", "GA"),
    ),
}
PLUGINS: dict[str, Callable[[], Any]] = {
    "broadcast": ContextBroadcast,
    "broadcast_scaled": partial(ContextBroadcast, scale=True),
    "squeeze": SqueezeExcite,
    "uniform": partial(UniformHead, "A"),
    "extra_block": ExtraBlock,
}
PAIRS = [("vit", name) for name in PLUGINS] + [("glnet", "broadcast"), ("glnet", "broadcast_scaled")]


@pytest.fixture(autouse=True)
def _forget_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(engine, "_code", {})


def build(host: str, plugin: str | None) -> nn.Module:
    torch.manual_seed(0)
    model = HOSTS[host]().eval()
    if plugin is not None:
        handle = attach(model, PLUGINS[plugin]())
        for parameter in handle.parameters():
            nn.init.normal_(parameter, std=0.5)  # scales begin at zero, where they would change nothing
    return model


@pytest.mark.parametrize(("host", "plugin"), PAIRS)
def test_compiled_blocks_do_what_their_plugin_says(host: str, plugin: str) -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    plain, model = build(host, None), build(host, plugin)
    want = model(images)
    assert not torch.allclose(plain(images), want, atol=1e-4)
    torch.testing.assert_close(compile_parts(model, backend="eager")(images), want, rtol=0, atol=1e-5)


def test_models_with_and_without_a_plugin_stay_apart_in_one_process() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for plugin in (None, "broadcast", "broadcast_scaled", None):
        model = build("vit", plugin)
        want = model(images)
        torch.testing.assert_close(compile_parts(model, backend="eager")(images), want, rtol=0, atol=1e-5)


def test_blocks_of_one_kind_are_compiled_once() -> None:
    model = compile_parts(build("vit", None), backend="eager")
    torch._dynamo.utils.counters.clear()
    model(torch.randn(2, 3, 32, 32))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_what_was_compiled_serves_later_models_of_the_process() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch._dynamo.utils.counters.clear()
    made = 0
    for seed in range(3):
        model = build("vit", None)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * seed)
        want = model(images)
        torch.testing.assert_close(compile_parts(model, backend="eager")(images), want, rtol=0, atol=1e-5)
        made = torch._dynamo.utils.counters["stats"]["unique_graphs"] if seed == 0 else made
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == made > 0


def test_a_block_whose_forward_was_replaced_is_not_given_what_was_compiled_before() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    compile_parts(build("vit", None), backend="eager")(images)
    model: Any = build("vit", None)
    for block in model.blocks:
        block.mlp.forward = MethodType(lambda self, x: 0.5 * type(self).forward(self, x), block.mlp)
    want = model(images)
    torch.testing.assert_close(compile_parts(model, backend="eager")(images), want, rtol=0, atol=1e-5)


def test_compiled_code_is_kept_in_the_users_own_cache_unless_another_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(engine.PLACE, "/elsewhere")
    engine.keep_compiled()
    assert os.environ[engine.PLACE] == "/elsewhere"
    monkeypatch.delenv(engine.PLACE)
    engine.keep_compiled()
    place = Path(os.environ[engine.PLACE])
    assert place == tmp_path / "cache" / "saccade" / "compiled"
    assert place.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv(engine.PLACE)
    place.chmod(0o777)  # others could have put code there
    engine.keep_compiled()
    assert engine.PLACE not in os.environ


@pytest.mark.slow
def test_a_second_process_takes_what_the_first_one_compiled(tmp_path: Path) -> None:
    code = (
        "import timm, torch; from saccade.training.engine import compile_parts; torch.manual_seed(0);"
        "model = timm.create_model('test_vit', num_classes=3); compile_parts(model);"
        "model(torch.randn(2, 3, 160, 160)).sum().backward();"
        "print(sum(v for k, v in torch._dynamo.utils.counters['inductor'].items() if k == 'fxgraph_cache_miss'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != engine.PLACE}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    missed = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        missed.append(int(done.stdout.split()[-1]))
    assert missed[0] > 0
    assert missed[1] == 0


def test_shapes_of_one_kind_do_not_become_variables_of_another() -> None:
    inputs: list[Any] = []

    def keep(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        inputs.append(examples)
        return graph.forward

    compile_parts(build("glnet", None), backend=keep)(torch.randn(2, 3, 32, 32))
    assert len(inputs) >= 3  # at least one a kind of block and width
    assert not [value for examples in inputs for value in examples if isinstance(value, torch.SymInt)]


def test_blocks_that_differ_in_drop_path_alone_are_compiled_once() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"depth": 10, "drop_path_rate": 0.5}
    model = compile_parts(HOSTS["vit"](**options).train(), backend="eager")
    torch._dynamo.utils.counters.clear()
    model(torch.randn(2, 3, 32, 32))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # the first block has none
    assert model.state_dict().keys() == HOSTS["vit"](**options).state_dict().keys()


@pytest.mark.parametrize("scale", [True, False])
def test_drop_path_keeps_whole_samples_at_its_rate_and_is_nothing_where_the_model_answers(scale: bool) -> None:
    torch.manual_seed(0)
    drop = engine.DropPath(0.3, scale=scale, device=torch.device("cpu"))
    x = torch.ones(4000, 3, 2)
    found = drop(x)
    kept = found[:, 0, 0] != 0
    assert torch.equal(found, found[:, :1, :1].expand_as(found))
    assert abs(float(kept.float().mean()) - 0.7) < 0.03
    assert torch.allclose(found[kept], torch.tensor(1 / 0.7 if scale else 1.0))
    assert torch.equal(drop.eval()(x), x)
    assert drop.train()(x.bfloat16()).dtype == torch.bfloat16


def test_uncompiled_parts_are_not_compiled_again() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model = build("vit", "broadcast_scaled")
    want = model(images)
    called = compile_parts(model, backend="eager")
    torch._dynamo.utils.counters.clear()
    with uncompiled():
        torch.testing.assert_close(called(images), want, rtol=0, atol=0)
    assert not torch._dynamo.utils.counters["stats"]
    called(images)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_gradients_of_compiled_blocks_are_those_of_the_plain_ones() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    grads = []
    for compiled in (False, True):
        model = build("glnet", "broadcast_scaled")
        model = compile_parts(model, backend="aot_eager") if compiled else model
        model(images).square().sum().backward()
        grads.append({name: value.grad for name, value in model.named_parameters()})
    for name, want in grads[0].items():
        torch.testing.assert_close(grads[1][name], want, rtol=1e-3, atol=1e-5, msg=name)


def kept_by_the_process() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.mkldnn.enabled,
        torch.get_rng_state().tolist(),
    )


def test_a_run_leaves_the_process_as_it_was_even_if_it_breaks() -> None:
    config = TrainConfig()
    config.engine.threads = 2
    before = kept_by_the_process()
    with suppress(RuntimeError), torch_settings(config, torch.device("cpu")):
        assert torch.get_num_threads() == 2
        torch.rand(3)
        raise RuntimeError
    assert kept_by_the_process() == before


@pytest.mark.parametrize("enabled", [True, False])
def test_training_attends_without_the_kernel_whose_gradient_can_be_no_number(enabled: bool) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
        with torch_settings(TrainConfig(), torch.device("cpu")):
            assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.cudnn_sdp_enabled() is enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_training_is_compiled_without_sums_that_have_given_wrong_gradients() -> None:
    inductor = pytest.importorskip("torch._inductor.config")
    before = inductor.triton.mix_order_reduction
    with inductor.patch({"triton.mix_order_reduction": True}):
        for compiles in (True, False):
            config = TrainConfig()
            config.engine.compile = compiles
            with torch_settings(config, torch.device("cpu")):
                assert inductor.triton.mix_order_reduction is not compiles
        assert inductor.triton.mix_order_reduction
    assert inductor.triton.mix_order_reduction is before


def test_a_run_that_ended_leaves_nothing_on_the_gpu(tmp_path, monkeypatch):
    loops, left = [], []
    made = Loop.__init__

    def seen(self, *args, **kwargs):
        loops.append(weakref.ref(self))
        made(self, *args, **kwargs)

    monkeypatch.setattr(Loop, "__init__", seen)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: left.append([loop() for loop in loops]))
    small = {"dims": [32], "depths": [1], "pattern": ["G"]}
    tiny = {"data.train_limit": 16, "optim.batch_size": 8, "model.options": small}
    saccade.train(epochs=1, out=tmp_path / "run", settings=tiny, device="cpu", quiet=True)
    assert loops
    assert left == [[None] * len(loops)]


def test_places_that_hold_nothing_are_no_blocks():
    blocks = [nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.ReLU()}) for _ in range(2)]
    assert repeated_blocks(nn.ModuleList([None, *blocks])) == blocks


def test_a_part_that_reads_its_layers_weights_is_compiled_as_one():
    model = timm.create_model("sot_tiny", img_size=32)
    kinds = [type(block).__name__ for block in repeated_blocks(model)]
    assert kinds.count("DenseNetEmbed") == 1
    assert "DenseLayer" not in kinds
    assert len(kinds) > 2


def test_small_kernels_are_joined_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    block, given = nn.Linear(2, 2), []
    monkeypatch.setattr(torch, "compile", lambda call, **options: given.append(options) or call)
    engine.compile_block(block)
    elsewhere = torch.ones(2).as_subclass(type("Elsewhere", (torch.Tensor,), {"is_cuda": True}))
    monkeypatch.setattr(nn.Module, "parameters", lambda *_, **__: iter([elsewhere]))
    engine.compile_block(block)
    engine.compile_block(block, backend="eager")
    assert [one["options"] for one in given] == [None, {"combo_kernels": True}, None]
