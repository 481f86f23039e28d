"""What every plug-in owes every host. To add a plug-in, put it in PLUGINS and its refusals in REFUSED."""

import copy
import io
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from timm.optim import param_groups_weight_decay
from torch import Tensor, nn

from saccade.models import cvt, glnet, nommer, sot, t2t  # noqa: F401 (registers the backbones)
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

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
DROPLESS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def images(model: nn.Module, batch: int = 2, size: tuple[int, int] = (32, 32)) -> dict[str, Tensor]:
    x = torch.randn(batch, 3, *size, dtype=next(model.parameters()).dtype)
    return {"pixel_values" if hasattr(model, "config") else "x": x}


def words(model: nn.Module, batch: int = 2) -> dict[str, Tensor]:
    mask = torch.ones(batch, 7, dtype=torch.long)
    mask[-1, 5:] = 0
    return {"input_ids": torch.randint(3, 40, (batch, 7)), "attention_mask": mask}


def words_and_images(model: nn.Module, batch: int = 2) -> dict[str, Tensor]:
    return {**words(model, batch), **images(model, batch)}


def sequences(model: nn.Module, batch: int = 2) -> dict[str, Tensor]:
    padding = words(model, batch)["attention_mask"] == 0
    return {"src": torch.randn(batch, 7, 16, dtype=next(model.parameters()).dtype), "src_key_padding_mask": padding}


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    inputs: Callable[..., dict[str, Tensor]] = images


def column(name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
    return partial(timm.create_model, name, **{"num_classes": 5, **size, **kwargs})


def own(name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    return partial(timm.create_model, name, num_classes=5, **kwargs)


SWIN = {"patch_size": 2, "embed_dim": 8, "depths": (1, 1, 2), "num_heads": (1, 2, 2), "window_size": 4}
PIT = {"patch_size": 8, "stride": 4, "base_dims": [8, 8], "depth": [1, 2], "heads": [2, 4], "mlp_ratio": 2}
CONVNEXT = {"depths": (1, 1, 1, 2), "dims": (8, 8, 16, 16)}
VILT = {"image_size": 32, "patch_size": 8, "vocab_size": 50, "max_position_embeddings": 10}


def hugging_face(kind: str, config: str, **kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(transformers, kind)(getattr(transformers, config)(**kwargs))


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True), 3)


HOSTS = {
    "vit": Case(column("vit_tiny_patch16_224")),
    "deit_distilled": Case(column("deit_tiny_distilled_patch16_224")),
    "swin": Case(partial(timm.create_model, "swin_tiny_patch4_window7_224", num_classes=5, img_size=32, **SWIN)),
    "pit": Case(partial(timm.create_model, "pit_ti_224", num_classes=5, img_size=32, **PIT)),
    "mixer": Case(partial(MlpMixer, num_classes=5, img_size=32, patch_size=8, embed_dim=24, num_blocks=3)),
    "convnext": Case(partial(timm.create_model, "convnext_atto", num_classes=5, **CONVNEXT)),
    "resnet50": Case(partial(timm.create_model, "resnet50", num_classes=5, layers=(1, 1, 1, 1))),
    "cait": Case(column("cait_xxs24_224")),
    "eva02": Case(column("eva02_tiny_patch14_224", mlp_ratio=2)),
    "vit_features": Case(column("vit_tiny_patch16_224", num_classes=0, features_only=True, out_indices=(0, 2))),
    "swin_features": Case(
        partial(timm.create_model, "swin_tiny_patch4_window7_224", features_only=True, img_size=32, **SWIN)
    ),
    "convnext_features": Case(partial(timm.create_model, "convnext_atto", features_only=True, **CONVNEXT)),
    "nommer": Case(own("nommer_tiny", embed_dim=16, depths=(1, 1, 1, 2))),
    "nommer_features": Case(
        partial(timm.create_model, "nommer_tiny", features_only=True, embed_dim=16, depths=(1, 1, 1, 1))
    ),
    "glnet": Case(own("glnet_4g", dims=(8, 16, 16, 32), depths=(1, 1, 2, 1), num_heads=(1, 1, 2, 2))),
    "sot": Case(own("sot_7", img_size=32, embed_dim=24, num_heads=2, depth=3)),
    "cvt": Case(own("cvt_13", dims=(8, 8, 16), depths=(1, 1, 2), num_heads=(1, 1, 2), head_dim=8)),
    "t2t": Case(own("t2t_vit_7", img_size=32, embed_dim=24, num_heads=2, depth=3)),
    "hf_vit": Case(hugging_face("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **SMALL)),
    "vilt": Case(hugging_face("ViltModel", "ViltConfig", **VILT, **SMALL, **DROPLESS), words_and_images),
    "bert": Case(
        hugging_face("BertForSequenceClassification", "BertConfig", vocab_size=50, **SMALL, **DROPLESS), words
    ),
    "roberta": Case(
        hugging_face("RobertaForSequenceClassification", "RobertaConfig", vocab_size=50, **SMALL, **DROPLESS), words
    ),
    "gpt2": Case(
        hugging_face(
            *("GPT2LMHeadModel", "GPT2Config"),
            **{
                "vocab_size": 50,
                "n_embd": 16,
                "n_layer": 3,
                "n_head": 2,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "use_cache": False,
            },
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        ),
        words,
    ),
    "torch_encoder": Case(encoder, sequences),
}

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


def build(host: str, seed: int = 0) -> nn.Module:
    """A tiny host whose every parameter matters: none is zero or nearly so."""
    torch.manual_seed(seed)
    model = HOSTS[host].build()
    stir(list(model.parameters()))
    return model.eval()


def stir(parameters: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for p in parameters:
            p.add_(0.1 * torch.randn_like(p))


def run(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """One tensor of all a host returns; ViLT chooses patches at random, the same ones here."""
    torch.manual_seed(3)
    args, kwargs = arguments(inputs)
    output = model(*args, **kwargs)
    output = getattr(output, "logits", getattr(output, "last_hidden_state", output))
    parts = output if isinstance(output, list | tuple) else [output]
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def arguments(inputs: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Positional and keyword arguments: images of timm models go by position."""
    rest = {name: value for name, value in inputs.items() if name != "x"}
    return ((inputs["x"],) if "x" in inputs else ()), rest


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
