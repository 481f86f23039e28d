import os
from dataclasses import replace

# Before torch reads it: two test processes share two cores, and a run equals another to the bit only if both, in this
# process or in one that a test starts, split their sums alike.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

# What a test writes need not outlast a power cut, and waiting for the disk takes a third of a short training.
os.fsync = lambda handle: None


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    """Two test processes share two cores; every test starts from the same random state and ways to compute."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = True  # turned off by PyTorch where a product in bfloat16 fails
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def few_answers():
    """Validate on the first hundred of the embedded set's thousand images: a tiny run spends half its time on them."""
    from saccade.data.arrays import EmbeddedReader

    whole = EmbeddedReader.open

    def shortened(*args):
        splits = whole(*args)
        return replace(splits, val=splits.val.subset(range(100)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedReader, "open", shortened)
        yield
