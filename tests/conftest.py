import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    """Two test processes share two cores; every test starts from the same random state."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
