"""Runs with a time, in processes of their own, on machines that become slower: killed, or several that share a run."""

import json
import subprocess
import sys

import pytest

from saccade.runs.run import Run
from support import slowing
from support.trainings import assert_same_end, environment, png_folder, records, settings, weights

pytestmark = pytest.mark.slow

# name -> epochs, steps of an epoch, when the machine becomes slower, settings
CASES = {
    "short epochs": (12, 4, 30.0, {}),
    "long epochs, readers beside": (2, 24, 18.0, {"data.workers": 2, "data.resident": "never"}),
    "losses by epoch": (6, 8, 20.0, {"augment.off_epochs": 2, "model.plugins": ["drloc:ramp_epochs=1"]}),
    "in the warm-up": (6, 8, 3.0, {"schedule.warmup": 5.0}),
}


def train(out, data, case, *, kill=None, processes=1):
    epochs, steps, slow_from, more = CASES[case]
    values = settings(schedule__epochs=epochs, augment__repeats=1, keep__every_steps=None, **more)
    seconds = 1.15 * (epochs * steps + (epochs + 1) * 1.0) + 0.01
    given = {"data": str(data), "out": str(out), "settings": values, "time": seconds + 5.0, "since": 0.0}
    spec = {"machine": {"steps": steps, "slow_from": slow_from}, "given": given, "kill": kill}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    done = subprocess.run(
        [sys.executable, *launcher, slowing.__file__, json.dumps(spec)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=300,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("case", CASES)
def test_a_run_killed_after_it_was_shortened_ends_with_the_bits_of_one_that_was_not(tmp_path, case):
    epochs, steps, *_ = CASES[case]
    data = png_folder(tmp_path / "images", train=16 * steps, val=6)
    code, told = train(tmp_path / "whole", data, case)
    assert code == 0, told[-3000:]
    summary = Run(tmp_path / "whole").summary()
    assert told.count("steps are slower than estimated") == 1  # else a run killed between two would keep the first
    first = summary["shortened"]["from_step"]
    assert first < summary["steps"] < epochs * steps
    for later in (0, (summary["steps"] - first) // 2):
        out = tmp_path / f"killed {later}"
        assert train(out, data, case, kill=first + later)[0] == -9
        code, told = train(out, data, case)
        assert code == 0, told[-3000:]
        assert_same_end(out, tmp_path / "whole")
        assert Run(out).summary()["shortened"] == summary["shortened"]


def test_processes_that_share_a_run_take_the_first_ones_decision(tmp_path):
    case = "short epochs"
    epochs, steps, *_ = CASES[case]
    data = png_folder(tmp_path / "images", train=16 * steps, val=6)
    ends = []
    for name in ("one", "two"):
        code, told = train(tmp_path / name, data, case, processes=2)
        assert code == 0, told[-3000:]
        assert told.count("steps are slower than estimated") == 1
        ends.append(Run(tmp_path / name).summary())
    assert ends[0]["steps"] == ends[1]["steps"] < epochs * steps
    assert records(tmp_path / "one") == records(tmp_path / "two")
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all((first[name] == second[name]).all() for name in first)
