"""Files in the layout of the published code, with formula weights, whose logits are known."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from support.golden import Case


def write_published(case: Case, file: Path) -> Path:
    """Write a case's weights as published: bare in safetensors, else under `model` as torch.save has them."""
    if file.suffix == ".safetensors":
        save_file(case.state_dict(), file)
    else:
        torch.save({"model": case.state_dict(), "epoch": 299}, file)
    return file
