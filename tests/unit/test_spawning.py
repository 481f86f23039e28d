import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade import spawning
from saccade.cli import main
from saccade.comparison.processes import Crew, Slot


@pytest.fixture
def gpu(monkeypatch):
    """A machine that looks as if it had GPUs, and no worker from before."""
    monkeypatch.setattr(spawning, "_has_gpu", lambda: True)
    monkeypatch.delenv(spawning.VISIBLE, raising=False)
    yield monkeypatch
    spawning.end_early()


def started(monkeypatch, device=None):
    """Return the environments that workers would be started with."""
    found = []
    monkeypatch.setattr(spawning, "start", lambda environment, log: found.append(dict(environment)) or None)
    spawning.start_early(device)
    spawning._early.clear()
    return found


@pytest.mark.parametrize(
    ("visible", "device", "expected"),
    [
        (None, None, "0"),
        (None, "auto", "0"),
        (None, "cuda:1", "1"),
        ("2,5", None, "2"),
        ("2,5", "cuda:1", "5"),
        ("GPU-ab12", "cuda", "GPU-ab12"),
        ("2,5", "cuda:2", None),
        ("", None, None),
        (None, "cpu", None),
        (None, "mps", None),
        (None, "cuda:x", None),
        (None, "cuda:²", None),
    ],
)
def test_the_first_gpu_that_will_be_taken_is_what_an_early_worker_sees(gpu, visible, device, expected):
    if visible is not None:
        gpu.setenv(spawning.VISIBLE, visible)
    assert started(gpu, device) == ([] if expected is None else [{spawning.VISIBLE: expected}])


def test_without_a_gpu_nothing_is_started(gpu):
    gpu.setattr(spawning, "_has_gpu", lambda: False)
    assert started(gpu) == []


def test_a_crew_takes_the_worker_of_its_first_gpu_over_and_it_answers(gpu, tmp_path):
    spawning.start_early()
    (early,) = spawning._early.values()
    with Crew([Slot({spawning.VISIBLE: "0"}), Slot({spawning.VISIBLE: "1"})]) as crew:
        crew.call()
        first, second = crew.workers
        assert first.process is early
        assert second.process is None
        answer = tmp_path / "answer.json"
        first.begin({"do": "probe", "config": {"task": "no such task"}}, answer=answer, log=tmp_path / "log")
        assert wait_for(answer.exists)
        assert json.loads(answer.read_text())["kind"] == "failed"
        assert first.process is early
    assert early.poll() is not None


@pytest.mark.parametrize("slots", [[], [Slot({spawning.VISIBLE: "1"})], [Slot({"OMP_NUM_THREADS": "1"}, 1)]])
def test_a_worker_that_no_slot_is_for_is_ended(gpu, slots):
    spawning.start_early()
    (early,) = spawning._early.values()
    crew = Crew(slots)
    assert early.poll() is not None
    assert [worker.process for worker in crew.workers] == [None] * len(slots)


def test_a_comparison_starts_it_first_of_all(monkeypatch):
    asked = []
    monkeypatch.setattr(spawning, "start_early", asked.append)
    assert main(["compare", "--seeds", "abc", "--device", "cuda:1"]) == 2
    assert asked == ["cuda:1"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_command_that_fails_leaves_no_worker_behind():
    code = (
        "import sys\nfrom saccade import spawning\nspawning._has_gpu = lambda: True\n"
        "spawning.start_early()\nprint(next(iter(spawning._early.values())).pid, flush=True)\nsys.exit(2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not alive(int(done.stdout))


@pytest.fixture
def helpers(gpu, tmp_path):
    """What is started where nothing was compiled before; the list of thread counts it would be started with."""
    found = []
    gpu.setenv(spawning.PLACE, str(tmp_path))
    gpu.setattr(spawning, "cores", lambda: 16)
    gpu.setattr(spawning, "start_helper", lambda threads: found.append(threads))
    yield found
    spawning._helpers.clear()


def test_helpers_are_started_where_nothing_was_compiled_before(helpers, gpu, tmp_path):
    (tmp_path / spawning.KNOWN).mkdir()
    (tmp_path / spawning.KNOWN / "lock").touch()
    spawning.start_helpers("cuda")
    assert helpers == [3] * spawning.HELPERS
    helpers.clear()
    (tmp_path / spawning.KNOWN / "0a1b").touch()
    spawning.start_helpers("cuda")
    assert helpers == []


@pytest.mark.parametrize(("device", "cores"), [("cpu", 16), ("mps", 16), (None, 2), (None, 3)])
def test_helpers_are_not_started_without_a_gpu_or_cores_to_spare(helpers, gpu, device, cores):
    gpu.setattr(spawning, "cores", lambda: cores)
    spawning.start_helpers(device)
    assert helpers == []


@pytest.mark.parametrize(("setting", "expected"), [("null", 1), ("4", 1), ("1", 0), (None, 0)])
def test_a_training_that_compiles_side_by_side_starts_helpers_first_of_all(monkeypatch, tmp_path, setting, expected):
    asked = []
    monkeypatch.setattr(spawning, "start_helpers", asked.append)
    given = ["--set", f"engine.compile_jobs={setting}"] if setting else []
    assert main(["train", str(tmp_path / "nothing"), "--device", "cuda:1", *given]) == 2
    assert asked == ["cuda:1"] * expected


def test_a_helper_that_is_not_needed_ends_with_its_input_and_by_itself():
    helper = spawning.start_helper(1)
    helper.process.stdin.close()
    assert helper.process.wait(120) == 0
    assert spawning.take_helper() is None
    helpers = [spawning.start_helper(1) for _ in range(2)]
    spawning._helpers.extend(helpers)
    helpers[1].process.kill()
    helpers[1].process.wait()
    assert spawning.take_helper() is helpers[0]  # one that still runs
    helpers[0].end()
    assert helpers[0].process.returncode == -9


def wait_for(what, seconds=120.0):
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.1)
    return what()


def alive(pid):
    """Whether a process runs; one that ended and was not asked about does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
