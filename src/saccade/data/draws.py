"""Random numbers that are functions of what they are for: no state, the same on every device, in every process.

A draw is named by integers (seed, epoch, picture, purpose). They are stirred into 32 bits by multiplications and
shifts, in 64-bit integers that never overflow, so that Python's integers, the CPU's and the GPU's tensors agree bit for
bit.
"""

from typing import Any

import torch
from torch import Tensor

Word = Any  # int or Tensor: the same arithmetic serves both
MASK = 0xFFFFFFFF


def stir(word: Word) -> Word:
    """Turn 32 bits into 32 others, one to one, every bit depending on every bit."""
    word = (word ^ (word >> 15)) * 0x2C1B3C6D & MASK
    word = (word ^ (word >> 12)) * 0x297A2D39 & MASK
    return word ^ (word >> 15)


def key(*parts: Word) -> Word:
    """Return 32 bits that stand for a sequence of non-negative integers; tensors among them are broadcast."""
    word: Word = 0x9E3779B9
    for part in parts:
        low, high = part & MASK, part >> 32
        word = stir((word ^ low) & MASK)
        word = stir((word + high + 0x7F4A7C15) & MASK)
    return word


def uniform(word: Tensor, purpose: int | Tensor) -> Tensor:
    """Return float32 numbers in [0, 1), one for each key; another purpose gives another number."""
    return (key(word, purpose) >> 8) * 2.0**-24  # 24 bits are exact in float32


def uniform_number(word: int, purpose: int) -> float:
    """Return what `uniform` returns for one key given as a Python integer."""
    return (key(word, purpose) >> 8) * 2.0**-24


def generator(*parts: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator whose stream is a function of the integers."""
    return torch.Generator(device).manual_seed(seed_of(*parts))


def seed_of(*parts: int) -> int:
    """Return 62 bits for seeding what wants a seed."""
    return (key(*parts, 1) << 30) ^ key(*parts, 2)
