"""A few cases of `benchmarks/faults/fuzz.py`, which runs any number of them with bounds on time and memory."""

import random

import pytest
from benchmarks.faults.fuzz import KINDS, is_clear


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["images", "shards", "configurations", "states", "bundles", "masks", "labels"])
def test_damaged_files_are_read_or_refused_in_words(tmp_path, kind):
    case, refused = KINDS[kind](tmp_path), 0
    for number in range(40):
        try:
            case(random.Random(f"test {kind} {number}"))
        except Exception as error:
            if not is_clear(error):
                raise AssertionError(f"case {number} of {kind}") from error
            refused += 1
    assert refused > 10
