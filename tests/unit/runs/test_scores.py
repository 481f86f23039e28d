import torch

from saccade.runs.scores import read_tensors
from saccade.runs.weights import save_tensors


def test_columns_that_are_one_tensor_are_written_as_two(tmp_path):
    same = torch.arange(3.0)
    save_tensors(tmp_path / "scores.safetensors", {"loss": same, "off": same, "part": torch.arange(6.0)[::2]})
    kept = read_tensors(tmp_path / "scores.safetensors")
    assert kept["loss"].tolist() == kept["off"].tolist() == [0, 1, 2]
    assert kept["part"].tolist() == [0, 2, 4]
