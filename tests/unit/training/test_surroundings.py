from contextlib import suppress

import pytest
import torch

from saccade.config import TrainConfig
from saccade.training.engine import torch_settings


def kept_by_the_process() -> tuple[object, ...]:
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.mkldnn.enabled,
        torch.get_rng_state().tolist(),
    )


def test_a_run_leaves_the_process_as_it_was_even_if_it_breaks() -> None:
    config = TrainConfig()
    config.engine.threads = 2
    before = kept_by_the_process()
    with suppress(RuntimeError), torch_settings(config, torch.device("cpu")):
        assert torch.get_num_threads() == 2
        torch.rand(3)
        raise RuntimeError
    assert kept_by_the_process() == before


@pytest.mark.parametrize("enabled", [True, False])
def test_training_attends_without_the_kernel_whose_gradient_can_be_no_number(enabled: bool) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
        with torch_settings(TrainConfig(), torch.device("cpu")):
            assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.cudnn_sdp_enabled() is enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
