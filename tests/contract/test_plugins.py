"""What every plug-in owes every host. To add a plug-in, put it in PLUGINS and its refusals in REFUSED."""

import copy
import io
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from timm.optim import param_groups_weight_decay
from torch import nn

from saccade.plugins import (
    ContextBroadcast,
    ExtraBlock,
    HostError,
    LoRA,
    SecondOrderHead,
    SqueezeExcite,
    UniformHead,
    attach,
    attached,
)
from support.plugin_hosts import HOSTS, arguments, build, run, stir

PLUGINS: dict[str, Callable[[], Any]] = {
    "broadcast": ContextBroadcast,
    "broadcast_scaled": partial(ContextBroadcast, scale=True, layers="all"),
    "squeeze": SqueezeExcite,
    "uniform": partial(UniformHead, "A"),
    "second_order": partial(SecondOrderHead, num_heads=2, head_dim=3),
    "extra_attention": ExtraBlock,
    "lora": partial(LoRA, rank=2),
}
MAPS = {  # their blocks return maps, or attend in windows
    *("swin", "convnext", "resnet50", "swin_features", "convnext_features", "vit_features"),
    *("nommer", "nommer_features", "glnet", "cvt"),
}
UNCLASSIFIED = {  # no classifier to replace: maps of features, bare encoders, a language model
    *(host for host in HOSTS if host.endswith("_features")),
    *("vilt", "gpt2", "torch_encoder"),
}
PLAIN_ATTENTION = {"vit", "deit_distilled", "vit_features", "pit", "sot", "t2t"}
REFUSED: dict[str, set[str]] = {
    "broadcast": {"resnet50"},
    "broadcast_scaled": {"resnet50"},
    "squeeze": {"resnet50"},
    "uniform": HOSTS.keys() - PLAIN_ATTENTION,
    "second_order": UNCLASSIFIED | {"sot"},
    "extra_attention": MAPS,
    "lora": {"resnet50", "convnext", "convnext_features"},  # no linear layers in blocks
}
PAIRS = [(host, plugin) for host in HOSTS for plugin in PLUGINS if host not in REFUSED[plugin]]
# Compiling and exporting take seconds: the first pairs always, all of them with the slow tests.
OFTEN = [("vit", "broadcast_scaled"), ("vit", "uniform"), ("swin", "squeeze"), ("bert", "broadcast_scaled")]
NOT_TRACED = {"vilt"}  # chooses patches by what it sees
every_pair = pytest.mark.parametrize(("host", "plugin"), PAIRS, ids=["-".join(pair) for pair in PAIRS])


@every_pair
def test_attach_then_detach_leaves_no_trace(host, plugin):
    model = build(host)
    inputs = HOSTS[host].inputs(model)
    keys, before = list(model.state_dict()), run(model, inputs)
    values = {key: value.clone() for key, value in model.state_dict().items()}
    hooks = count_hooks(model)
    handle = attach(model, PLUGINS[plugin]())
    stir(handle.parameters())
    assert not torch.allclose(run(model, inputs), before, rtol=1e-3, atol=1e-5)
    handle.detach()
    assert torch.equal(run(model, inputs), before)
    assert list(model.state_dict()) == keys
    assert all(torch.equal(value, values[key]) for key, value in model.state_dict().items())
    assert count_hooks(model) == hooks
    assert not attached(model)


def count_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@every_pair
def test_new_parameters_are_trained_and_sorted_for_decay(host, plugin):
    model = build(host).train()
    handle = attach(model, PLUGINS[plugin]())
    run(model, HOSTS[host].inputs(model)).square().mean().backward()
    listed = {id(p) for p in model.parameters()}
    assert {id(p) for p in handle.parameters()} <= listed
    assert all(p.grad is not None and p.grad.isfinite().all() for p in handle.parameters())
    decay_free = {id(p) for p in param_groups_weight_decay(model, 0.05)[0]["params"]}
    assert {id(p) for p in handle.parameters() if p.ndim < 2} <= decay_free


@every_pair
def test_state_dict_round_trip(host, plugin):
    model, twin = build(host), build(host, seed=1)
    stir(attach(model, PLUGINS[plugin]()).parameters())
    attach(twin, PLUGINS[plugin]())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True), strict=True)
    inputs = HOSTS[host].inputs(model)
    assert torch.equal(run(model, inputs), run(twin, inputs))


@every_pair
def test_a_copy_has_a_handle_of_its_own(host, plugin):
    model = build(host)
    inputs = HOSTS[host].inputs(model)
    bare = run(model, inputs)
    handle = attach(model, PLUGINS[plugin]())
    stir(handle.parameters())
    with_plugin = run(model, inputs)
    twin = copy.deepcopy(model)
    assert torch.equal(run(twin, inputs), with_plugin)
    (own_handle,) = attached(twin)
    own_handle.detach()
    assert torch.equal(run(twin, inputs), bare)
    assert torch.equal(run(model, inputs), with_plugin)
    handle.detach()
    assert torch.equal(run(model, inputs), bare)


@every_pair
def test_precision_is_the_hosts(host, plugin):
    for dtype in (torch.bfloat16, torch.float64):
        model = build(host).to(dtype)
        handle = attach(model, PLUGINS[plugin]())
        assert all(p.dtype is dtype for p in handle.parameters())
        with torch.inference_mode():
            output = run(model, HOSTS[host].inputs(model))
        assert output.dtype is dtype
        assert output.isfinite().all()


@pytest.mark.parametrize("host", [h for h in HOSTS if h not in REFUSED["broadcast"]])
@pytest.mark.parametrize("first_off", [True, False], ids=["first off first", "last off first"])
def test_two_plugins_come_off_in_any_order(host, first_off):
    model = build(host)
    inputs = HOSTS[host].inputs(model)
    bare = run(model, inputs)
    one, two = attach(model, ContextBroadcast()), attach(model, SqueezeExcite(layers="all"))
    both = run(model, inputs)
    (one if first_off else two).detach()
    left = run(model, inputs)
    assert not torch.equal(left, both)
    (two if first_off else one).detach()
    assert torch.equal(run(model, inputs), bare)


@pytest.mark.parametrize(
    ("host", "plugin"), [(host, plugin) for plugin, hosts in REFUSED.items() for host in sorted(hosts)]
)
def test_refusal_says_what_was_looked_for_and_leaves_the_host_alone(host, plugin):
    model = build(host)
    keys = list(model.state_dict())
    with pytest.raises(HostError, match=r"blocks=|choose|pass |[Nn]ame|Give|set its own") as caught:
        attach(model, PLUGINS[plugin]())
    assert len(str(caught.value)) > 60
    assert list(model.state_dict()) == keys
    assert not attached(model)


traced_pairs = pytest.mark.parametrize(
    ("host", "plugin"),
    [
        pytest.param(*pair, marks=[] if pair in OFTEN else [pytest.mark.slow], id="-".join(pair))
        for pair in PAIRS
        if pair[0] not in NOT_TRACED
    ],
)


@traced_pairs
def test_compiles_as_one_graph(host, plugin):
    model = build(host)
    stir(attach(model, PLUGINS[plugin]()).parameters())
    inputs = HOSTS[host].inputs(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(run(compiled, inputs), run(model, inputs))
    if "attention_mask" in inputs:  # the mask of one call does not stay for the next
        del inputs["attention_mask"]
        torch.testing.assert_close(run(compiled, inputs), run(model, inputs))


@traced_pairs
def test_exports_with_dynamic_batch(host, plugin):
    model = build(host)
    stir(attach(model, PLUGINS[plugin]()).parameters())
    args, kwargs = arguments(HOSTS[host].inputs(model))
    batch = {0: torch.export.Dim.DYNAMIC}
    shapes = (*(batch for _ in args), *(batch for _ in kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes).module()
    more = HOSTS[host].inputs(model, batch=5)
    torch.testing.assert_close(run(program, more), run(model, more))


@pytest.mark.slow
def test_two_processes_train_alike():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(port)]
    processes = [
        subprocess.Popen([*command, str(rank)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)


def train_in_parallel(port: int, rank: int) -> None:
    """Gradients of two processes with half a batch each are those of one with the whole."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    for host, plugin in [pair for pair in PAIRS if pair[0] in ("vit", "bert")]:
        model = build(host).double()
        handle = attach(model, PLUGINS[plugin]())
        alone = copy.deepcopy(model)
        halves = [HOSTS[host].inputs(model) for _ in range(2)]
        parallel = nn.parallel.DistributedDataParallel(model)
        run(parallel, halves[rank]).square().mean().backward()
        torch.stack([run(alone, half).square().mean() for half in halves]).mean().backward()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        assert all(p.grad is not None for p in handle.parameters())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train_in_parallel(*map(int, sys.argv[1:]))
