"""A kernel that fails to compile or to start is left out, and the plain model's own errors come out."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from saccade.deployment.optimize import optimize
from saccade.deployment.predictor import open_predictor
from saccade.evaluation.speed import Setting, race
from saccade.kernels import Guard
from saccade.training.train import train
from support.exports import tiny_run
from support.toy_kernels import BrokenLinear, CountedLinear, row
from support.trainings import assert_same_end, png_folder, settings

VIT = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 4}
X = torch.linspace(-1, 1, 12).view(3, 4)


def foreign_errors():
    """Yield errors as Triton and PyTorch's compiler raise them."""
    yield RuntimeError("Triton Error [CUDA]: invalid argument\nand more")
    try:
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import OutOfResources

        yield CompilationError(None, None, "no such thing")
        yield OutOfResources(300_000, 232_448, "shared memory")
    except ImportError:
        pass
    try:
        from torch._inductor.exc import InductorError
    except ImportError:
        return
    yield InductorError(ValueError("a kernel cannot be lowered"), None)


@pytest.fixture
def broken(rows, monkeypatch):
    """Put a failing row into the table; return what sets its error, and after how many calls it comes."""
    rows(row(BrokenLinear))

    def set_error(error, after=0):
        monkeypatch.setattr(BrokenLinear, "error", error)
        monkeypatch.setattr(BrokenLinear, "after", after)

    set_error(RuntimeError("no such instruction"))
    return set_error


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.mark.parametrize("error", list(foreign_errors()), ids=lambda error: type(error).__name__)
def test_a_failing_kernel_is_left_out_with_one_warning_and_the_call_is_made_again(broken, error):
    broken(error, after=1)
    plain, model, renewed = build(), build(), []
    want = plain(X)
    guard = Guard(model, "train", renew=lambda: renewed.append(True))
    assert guard.names == ("toy",)
    with pytest.warns(UserWarning, match="toy are disabled.*--kernels off") as told:
        got = guard.run(lambda: model(X), changes=model.buffers)
    assert len(told) == 1
    first = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    assert first in str(told[0].message)
    assert guard.failure == first
    assert torch.equal(got, want)
    assert torch.equal(model[0].running_mean, plain[0].running_mean)  # not counted twice
    assert (guard.names, renewed, type(model[1])) == ((), [True], nn.Linear)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.run(lambda: model(X))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
        KeyboardInterrupt(),
    ],
    ids=["gpu", "cpu", "reader", "interrupt"],
)
def test_what_is_no_fault_of_a_kernel_comes_out_and_kernels_stay(broken, error):
    broken(error)
    model = build()
    guard = Guard(model, "train")
    with pytest.raises(type(error)) as raised:
        guard.run(lambda: model(X))
    assert raised.value is error
    assert guard.names == ("toy",)


def test_an_error_of_the_plain_model_is_its_own_and_nothing_is_warned_of(rows):
    rows(row(CountedLinear))
    model = build()
    guard = Guard(model, "train")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="3 elements not 4") as raised:
            guard.run(lambda: model(X[:, :3]))
    assert raised.value.__context__ is None


def test_workarounds_stay_where_kernels_are_left_out(rows, monkeypatch):
    rows(row(BrokenLinear), row(CountedLinear, name="needed", workaround=True))
    monkeypatch.setattr(BrokenLinear, "after", 0)
    model = build()
    guard = Guard(model, "train")
    with pytest.warns(UserWarning, match="toy are disabled"):
        guard.run(lambda: model(X))
    assert (guard.names, guard.handle.workarounds) == ((), ("needed",))
    assert type(model[1]) is CountedLinear


def test_later_calls_of_a_kind_are_not_guarded(broken):
    broken(RuntimeError("late"), after=1000)
    model = build()
    guard = Guard(model, "train")
    for _ in range(20):
        guard.run(lambda: model(X), kind="x")
    broken(RuntimeError("late"))
    with pytest.raises(RuntimeError, match="late"):
        guard.run(lambda: model(X), kind="x")
    with pytest.warns(UserWarning, match="late"):
        guard.run(lambda: model(X), kind="another shape")


def test_what_was_asked_for_by_name_and_does_nothing_is_told(rows):
    rows(row(CountedLinear, devices=("cuda",)), row(CountedLinear, name="other"))
    assert Guard(build(), "train", "toy,other").describe() == ("kernels: other; toy is not used: it only supports cuda")
    assert Guard(build(), "train", "off").describe() == "kernels: none"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return png_folder(tmp_path_factory.mktemp("data"))


def trained(data, out, **more):
    values = settings(model__name="vit_tiny_patch16_224", model__options=VIT, schedule__epochs=2, **more)
    train(str(data), out=out, settings=values, quiet=True)
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("after", [0, 13])  # in the first part of a batch, and in the second
def test_a_training_goes_on_plain_to_the_same_bits_and_its_record_says_so(data, tmp_path, broken, after):
    off = trained(data, tmp_path / "off", engine__kernels="off")
    broken(RuntimeError("no such instruction"), after=after)
    with pytest.warns(UserWarning, match="toy are disabled.*no such instruction"):
        found = trained(data, tmp_path / "broken")
    assert_same_end(tmp_path / "broken", tmp_path / "off")
    assert (off["kernels"], found["kernels"]) == ([], [])
    assert "kernels_failed" not in off
    assert found["kernels_failed"] == "RuntimeError: no such instruction"
    assert "no such instruction" in (tmp_path / "broken" / "report.html").read_text()
    assert "kernels: auto" in (tmp_path / "broken" / "config.yaml").read_text()


def test_a_run_records_the_kernels_of_its_steps_and_may_be_resumed_without(data, tmp_path, rows):
    rows(row(CountedLinear))
    found = trained(data, tmp_path / "run")
    assert found["kernels"] == ["toy"]
    assert CountedLinear.calls > 0
    assert ">toy<" in (tmp_path / "run" / "report.html").read_text()
    CountedLinear.calls = 0
    train(resume=tmp_path / "run", kernels="off", quiet=True)
    assert CountedLinear.calls == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["kernels"] == ["toy"]
    assert "kernels: 'off'" in (tmp_path / "run" / "config.yaml").read_text()


def test_an_unknown_kernel_is_refused_before_a_run_has_a_folder(data, tmp_path, rows):
    rows(row(CountedLinear))
    with pytest.raises(ValueError, match="there is no kernel 'tyo'; did you mean 'toy'"):
        trained(data, tmp_path / "run", engine__kernels="tyo")
    assert not (tmp_path / "run").exists()


def test_a_predictor_answers_by_kernels_or_without(tmp_path, rows, broken):
    run = tiny_run(tmp_path / "run")
    asked = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    want = open_predictor(run, kernels="off").outputs(asked)
    predictor = open_predictor(run)
    with pytest.warns(UserWarning, match="toy are disabled"):
        np.testing.assert_array_equal(predictor.outputs(asked), want)
    rows(row(CountedLinear))
    predictor = open_predictor(run)
    np.testing.assert_array_equal(predictor.outputs(asked), want)
    assert predictor.guard.names == ("toy",)
    assert CountedLinear.calls > 0


@pytest.mark.parametrize("compile", [False, True])
def test_an_optimized_copy_has_kernels_or_does_without_and_the_model_stays_plain(rows, broken, monkeypatch, compile):
    if compile:
        whole = torch.compile
        monkeypatch.setattr(torch, "compile", lambda model: whole(model, backend="eager"))
    model = build().eval()
    want = model(X)
    with pytest.warns(UserWarning, match="toy are disabled"):
        fast = optimize(model, X, compile=compile)
    torch.testing.assert_close(fast(X), want)
    assert not any(isinstance(m, BrokenLinear) for m in fast.modules())
    rows(row(CountedLinear))
    fast = optimize(model, X, compile=compile)
    torch.testing.assert_close(fast(X), want)
    assert any(isinstance(m, CountedLinear) for m in fast.modules())
    assert type(model[1]) is nn.Linear
    off = optimize(fast if not compile else model, X, kernels="off")  # of an accelerated model, too
    assert not any(isinstance(m, CountedLinear) for m in off.modules())


def test_a_benchmark_tells_which_kernels_ran(rows):
    rows(row(CountedLinear, modes=("train",)))
    quick = {"batch_size": 2, "img_size": 160, "rounds": 1, "seconds": 0.01}
    for mode, kernels, ran in (("training", "auto", ("toy",)), ("training", "off", ()), ("inference", "auto", ())):
        assert race(["test_vit"], Setting(mode=mode, kernels=kernels, **quick))["test_vit"].kernels == ran
