import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from filelock import FileLock
from torch import nn

import saccade  # noqa: F401 registers the backbones
from saccade.config import TrainConfig, overlay
from saccade.training import ahead, engine, step
from saccade.training.ahead import Layout, compile_ahead, jobs_of
from saccade.training.engine import compile_parts
from saccade.training.train import train

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
CONFIG = overlay(TrainConfig(), {"engine.compile": True, "engine.compile_jobs": 2})


@pytest.fixture(autouse=True)
def _cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(engine.PLACE, str(tmp_path / "cache"))
    monkeypatch.setattr(ahead, "_seen", set())
    monkeypatch.setattr(engine, "_code", {})
    torch.compiler.reset()


def glnet() -> nn.Module:
    options: dict[str, Any] = {"dims": (32, 64, 64), "depths": (1, 2, 2), "num_heads": (1, 2, 2), "drop_path_rate": 0.1}
    return compile_parts(timm.create_model("glnet_nano", num_classes=10, **options).train(), backend="eager")


def ask(model: nn.Module, size: int = 2) -> int:
    return compile_ahead(model, torch.randn(size, 3, 32, 32), {}, config=CONFIG, device=CPU, jobs=2)


def test_a_tensor_made_from_a_layout_lies_as_the_one_it_was_taken_from() -> None:
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    tokens = torch.randn(4, 10, 6, dtype=torch.bfloat16).requires_grad_()
    for value in (image, tokens, tokens[:, 1:], image[1:].flatten(2).mT, torch.tensor(1.0)):
        made = Layout.of(value).fill()
        assert Layout.of(made) == Layout.of(value)
        assert made.is_leaf


def test_processes_are_begun_on_a_gpu_with_cores_to_spare_or_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert jobs_of(overlay(TrainConfig(), {"engine.compile": True}), CUDA) == 1
    automatic = overlay(TrainConfig(), {"engine.compile": True, "engine.compile_jobs": None})
    for cores, want in ((16, 8), (6, 6), (2, 1)):
        monkeypatch.setattr(ahead, "cores", lambda cores=cores: cores)
        assert jobs_of(automatic, CUDA) == want
        assert jobs_of(automatic, CPU) == 1
    assert jobs_of(CONFIG, CPU) == 2
    assert jobs_of(overlay(CONFIG, {"engine.compile_jobs": 1}), CUDA) == 1
    assert jobs_of(overlay(CONFIG, {"engine.compile": False}), CUDA) == 1
    assert jobs_of(overlay(CONFIG, {"engine.grad_checkpointing": True}), CUDA) == 1


def test_each_kind_goes_to_one_process_and_nothing_of_the_task_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def run(files: list[Any], jobs: int) -> None:
        for file in files:
            file.seek(0)
            calls.append(torch.load(file, weights_only=False))

    monkeypatch.setattr(ahead, "_run", run)
    model = glnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert any("running_mean" in name for name in before)  # a step forward would change these
    assert ask(model) == len(calls)
    assert len({(engine.describe_kind(call.block), repr(call.given)) for call in calls}) == len(calls)
    assert all(call.block.training and call.grad for call in calls)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    torch._dynamo.utils.counters.clear()
    model(torch.randn(2, 3, 32, 32))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(calls)


def test_random_draws_of_the_step_are_not_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_run", lambda files, jobs: None)
    model, images = glnet(), torch.randn(2, 3, 32, 32)
    torch.manual_seed(3)
    want = torch.rand(4)
    torch.manual_seed(3)
    assert compile_ahead(model, images, {}, config=CONFIG, device=CPU, jobs=2)
    assert torch.equal(torch.rand(4), want)


def test_what_is_in_the_cache_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_run", lambda files, jobs: None)
    assert ask(glnet()) == 4
    assert ask(glnet()) == 0
    ahead._seen.clear()  # as in another process
    assert ask(glnet()) == 0
    assert ask(glnet(), size=4) == 4


def test_no_processes_are_begun_beside_those_of_another_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ahead, "_run", lambda files, jobs: pytest.fail("begun"))
    (tmp_path / "cache" / "ahead").mkdir(parents=True)
    with FileLock(tmp_path / "cache" / "ahead" / "lock"):
        assert ask(glnet()) == 0


def test_processes_that_take_too_long_are_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            begun.append(self)

    monkeypatch.setattr(ahead, "LIMIT", 0.2)
    monkeypatch.setattr(subprocess, "Popen", Kept)
    with pytest.warns(UserWarning, match=r"4 of 4 kinds: not within 0.2 s\); engine.compile_jobs=1 leaves"):
        ask(glnet())
    assert len(begun) == 2
    assert [process.returncode for process in begun] == [-9, -9]


@pytest.mark.slow
def test_a_process_ends_with_the_one_that_began_it() -> None:
    code = "import threading, time; from saccade.training import ahead; threading.Thread(target=ahead._end_with_parent)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}.start(); time.sleep(60)"], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=50) == -9


def test_the_first_step_of_a_run_has_its_kinds_compiled_as_it_will_call_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Asked(Exception):  # noqa: N818
        pass

    def look(task: nn.Module, batch: Any, draw: Any, *, jobs: int, **_: Any) -> int:
        raise Asked(task.training, tuple(batch["image"].shape), batch["image"].dtype, sorted(draw), jobs)

    monkeypatch.setattr(step, "compile_ahead", look)
    settings = {"engine.compile": True, "engine.compile_jobs": 3, "optim.accumulate": 2, "data.img_size": 16}
    with pytest.raises(Asked) as asked:
        train(model="test_vit", epochs=1, batch_size=8, out=tmp_path, device="cpu", quiet=True, settings=settings)
    assert asked.value.args == (True, (4, 1, 16, 16), torch.float32, [], 3)


class Unknown(nn.Module):
    """A block that other processes cannot import."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, dim), nn.Linear(dim, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.mark.slow
def test_a_process_that_fails_is_told_once() -> None:
    Unknown.__module__ = "nowhere"
    sys.modules["nowhere"] = sys.modules[__name__]
    try:
        task = nn.Sequential(Unknown(8), Unknown(16))
        with pytest.warns(UserWarning, match="2 of 2 kinds: ModuleNotFoundError: No module named 'nowhere'"):
            compile_ahead(task, torch.randn(2, 8), {}, config=CONFIG, device=CPU, jobs=2)
        assert compile_ahead(task, torch.randn(2, 8), {}, config=CONFIG, device=CPU, jobs=2) == 0
    finally:
        del sys.modules["nowhere"]


STEP = """
import sys
from saccade import spawning
spawning._helpers += [spawning.start_helper(1) for _ in range(int(sys.argv[2]))]
early = list(spawning._helpers)
import timm, torch
from saccade import ContextBroadcast, attach
from saccade.config import TrainConfig, overlay
from saccade.training.ahead import compile_ahead
from saccade.training.engine import compile_parts, torch_settings
config = overlay(TrainConfig(), {"engine.compile": True, "engine.compile_jobs": 2})
device, jobs = torch.device("cpu"), int(sys.argv[1])
torch.manual_seed(0)
size = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "drop_path_rate": 0.5}
model = timm.create_model("vit_tiny_patch16_224", num_classes=4, **size).train()
attach(model, ContextBroadcast(scale=True))
images = torch.randn(4, 3, 32, 32)
with torch_settings(config, device), torch.autocast("cpu", torch.bfloat16):
    compile_parts(model)
    made = compile_ahead(model, images, {}, config=config, device=device, jobs=jobs)
    torch.manual_seed(1)
    model(images).square().sum().backward()
counts = torch._dynamo.utils.counters
missed = counts["inductor"]["fxgraph_cache_miss"] + counts["aot_autograd"]["autograd_cache_miss"]
print(made, counts["aot_autograd"]["autograd_cache_hit"], missed)
print(sum(p.grad.double().abs().sum() for p in model.parameters() if p.grad is not None).item())
print(sum(helper.process.returncode == 0 for helper in early))
"""


@pytest.mark.slow
def test_a_step_finds_all_that_was_compiled_ahead_and_computes_the_same(tmp_path: Path) -> None:
    found = []
    for jobs, early in ((2, 0), (1, 0), (2, 3)):
        environment = os.environ | {engine.PLACE: str(tmp_path / f"{jobs}-{early}")}
        command = [sys.executable, "-c", STEP, str(jobs), str(early)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(done.stdout.split())
    (made, hits, missed, total, _), (plain_made, _, plain_missed, plain_total, _), sooner = found
    assert (int(made), int(missed)) == (2, 0)  # with and without drop path
    assert int(hits) >= 2
    assert int(plain_made) == 0 < int(plain_missed)
    assert total == plain_total
    assert sooner == [made, hits, missed, total, "2"]  # by two of the three processes that were there
