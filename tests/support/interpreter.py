"""Kernels in Triton's interpreter: in a process of their own, for it is chosen when they are made."""

import os
import subprocess
import sys

import pytest

from saccade.kernels.triton.language import INSTALLED

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INSTALLED or not _INTERPRETED, reason="needs TRITON_INTERPRET=1")
not_interpreted = pytest.mark.skipif(not INSTALLED or _INTERPRETED, reason="elsewhere they run by themselves")


def run_interpreted(file: str, chosen: str) -> str:
    """Run the tests of a file that are named so, see that they pass, and return what is printed."""
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", file, "-k", chosen]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout
