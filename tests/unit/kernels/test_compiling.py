from types import SimpleNamespace

import pytest
import torch

from saccade.kernels.compiling import is_constant, shared_memory


def test_compiled_code_takes_the_gpus_shared_memory_for_a_constant(monkeypatch):
    def properties(index):
        return SimpleNamespace(shared_memory_per_block_optin=101_376 if index == 0 else 0)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x * shared_memory(x), backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [101_376, 101_376]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_symbol_is_no_constant_to_compiled_code(dynamic):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: x if is_constant(x.shape[0]) else -x, backend="eager", fullgraph=True, dynamic=dynamic
    )
    assert compiled(torch.ones(5)).tolist() == 5 * [-1 if dynamic else 1]
    assert is_constant(5)
