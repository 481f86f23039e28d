import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade.cli import main
from saccade.comparison.run.processes import Crew, Slot
from saccade.support import spawning


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
        "import sys\nfrom saccade.support import spawning\nspawning._has_gpu = lambda: True\n"
        "spawning.start_early()\nprint(next(iter(spawning._early.values())).pid, flush=True)\nsys.exit(2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not alive(int(done.stdout))


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
