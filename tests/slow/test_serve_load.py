"""A minute of good and hostile clients against a real process."""

import asyncio
import resource

import numpy as np
import pytest
from benchmarks.speed.serve import HOSTILE, load, resident_mib

from support.serving import start

pytestmark = pytest.mark.slow


def test_sixty_four_clients_for_a_minute_fail_no_good_request_and_leave_memory_flat():
    process, port = start(0.02)
    try:
        tally, resident = asyncio.run(
            load(port, clients=64, seconds=60, enemies=HOSTILE, memory=lambda: resident_mib(process.pid))
        )
    finally:
        process.terminate()
    assert process.wait(60) == 0
    assert tally.wrong == []
    assert tally.outcomes["good"][200] > 500
    assert "left hanging" not in {outcome for outcomes in tally.outcomes.values() for outcome in outcomes}
    early, late = np.mean(resident[15:30]), np.mean(resident[-15:])
    assert late < early * 1.1 + 20


def test_six_hundred_slow_uploads_fail_no_good_request():
    process, port = start(0.02)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1024, 1024))  # half of these are places
    try:
        tally, _ = asyncio.run(load(port, clients=616, seconds=30, enemies={"slow": 600}, kept=False))
    finally:
        process.terminate()
    assert process.wait(90) == 0
    assert tally.wrong == []
    assert tally.outcomes["good"][200] > 200
    assert "left hanging" not in tally.outcomes["slow"]
