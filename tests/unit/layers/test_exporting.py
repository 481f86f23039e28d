from types import SimpleNamespace

import torch

from saccade.layers.exporting import shared_memory


def test_compiled_code_takes_the_gpus_shared_memory_for_a_constant(monkeypatch):
    def properties(index):
        return SimpleNamespace(shared_memory_per_block_optin=101_376 if index == 0 else 0)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x * shared_memory(x), backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [101_376, 101_376]
