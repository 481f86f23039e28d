"""Rebuild weights and inputs of the published networks from the formula in tests/golden/README.md."""

import json
import math
import zlib
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).parents[1] / "golden"


def stream(key: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(zlib.crc32(key.encode())))


def normal(key: str, shape: list[int] | tuple[int, ...]) -> np.ndarray:
    return stream(key).standard_normal(math.prod(shape)).reshape(shape)


def uniform(key: str, shape: list[int] | tuple[int, ...]) -> np.ndarray:
    return stream(key).random(math.prod(shape)).reshape(shape)


def integers(key: str, high: int, shape: list[int] | tuple[int, ...]) -> np.ndarray:
    return stream(key).integers(0, high, size=math.prod(shape)).reshape(shape)


def tensor(key: str, shape: list[int] | tuple[int, ...]) -> Tensor:
    """float32(normal(key, shape)), the inputs of every case."""
    return torch.from_numpy(normal(key, shape).astype(np.float32))


def fill(entry: dict[str, Any]) -> Tensor:
    """The value of one entry of a published state dict."""
    key, shape, rule = entry["key"], entry["shape"], entry["fill"]
    if rule == "int":
        return _integer(key, shape)
    if rule == "as_built":
        return _constant(key, shape)
    n = normal(key, shape)
    fan = math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 1.0
    value = {
        "rmean": lambda: 0.1 * n,
        "rvar": lambda: 0.8 + 0.2 * n**2,
        "scalar": lambda: 4.0 + 0.5 * n,
        "lscale": lambda: 0.5 + 0.1 * n,
        "bias": lambda: 0.1 * n,
        "start": lambda: n,
        "gain": lambda: 1.0 + 0.1 * n,
        "token": lambda: 0.5 * n,
        "feat": lambda: 0.7 * n,
        "kqv": lambda: 0.25 * n / fan,
        "cpe": lambda: 0.2 * n / fan,
        "matrix": lambda: n / fan,
    }[rule]()
    return torch.from_numpy(np.asarray(value).astype(np.float32))


def _integer(key: str, shape: list[int]) -> Tensor:
    if not key.endswith("relative_position_index"):
        return torch.zeros(shape, dtype=torch.int64)
    window = math.isqrt(shape[0])
    row, column = np.divmod(np.arange(window * window), window)
    index = (row[:, None] - row + window - 1) * (2 * window - 1) + (column[:, None] - column + window - 1)
    return torch.from_numpy(index)


def _constant(key: str, shape: list[int]) -> Tensor:
    if key.endswith("pos_embed"):
        _, length, dim = shape
        column = np.arange(dim)
        angle = np.arange(length)[:, None] / np.power(10000.0, 2 * (column // 2) / dim)
        table = np.where(column % 2 == 0, np.sin(angle), np.cos(angle))
        return torch.from_numpy(table.astype(np.float32))[None]
    if key.endswith("dct_conv_8x8.weight"):
        kernel = dct_kernel(shape[-1])
        return torch.from_numpy(np.tile(kernel, (shape[0] // len(kernel), 1, 1))[:, None].astype(np.float32))
    if key.endswith("idct_conv.0.weight"):
        kept = math.isqrt(shape[1])
        side = next(k for k in (2 * kept, 2 * kept - 1) if shape[0] % (k * k) == 0 and (k + 1) // 2 == kept)
        kernel = dct_kernel(side).reshape(kept * kept, side * side).T
        return torch.from_numpy(np.tile(kernel, (shape[0] // len(kernel), 1))[..., None, None].astype(np.float32))
    raise KeyError(key)


def dct_kernel(side: int) -> np.ndarray:
    """Orthonormal DCT-II, low half of the frequencies per axis: r*r, side, side."""
    kept = (side + 1) // 2
    place = (2 * np.arange(side) + 1) * np.pi / (2 * side)
    wave = np.cos(np.outer(np.arange(kept), place)) * math.sqrt(2 / side)
    wave[0] /= math.sqrt(2)
    return np.einsum("vy,ux->vuyx", wave, wave).reshape(kept * kept, side, side)


@dataclass(frozen=True)
class Case:
    """One run of a published network: weights, input and what came out."""

    name: str
    record: dict[str, Any]
    entries: tuple[dict[str, Any], ...]
    arrays: Any

    @property
    def id(self) -> str:
        return self.record["id"]

    def state_dict(self) -> dict[str, Tensor]:
        changed = {entry["key"]: entry for entry in self.record.get("state_dict_overrides") or []}
        return {entry["key"]: fill(changed.get(entry["key"], entry)) for entry in self.entries}

    def input(self) -> Tensor:
        return tensor(self.record["input_key"], self.record["input_shape"])

    @property
    def logits(self) -> Tensor:
        """The reference, computed in float64."""
        return torch.from_numpy(self.arrays[f"{self.id}.logits_f64"])

    def feature(self, tap: str) -> Tensor:
        """64 strided values of a named submodule's output."""
        return torch.from_numpy(self.arrays[f"{self.id}.feat.{tap}.slice"])


@cache
def read(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON record and the arrays of one golden file pair."""
    record = json.loads((FOLDER / f"{name}.json").read_text())
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return record, {key: arrays[key] for key in arrays.files}


def cases(name: str) -> list[Case]:
    record, arrays = read(name)
    return [Case(name, case, tuple(record["state_dict"]), arrays) for case in record["cases"]]


def case(name: str, id: str) -> Case:
    return next(c for c in cases(name) if c.id == id)


def part(name: str, piece: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A building block of a `*_parts` file: its record and its arrays by short name, in float64."""
    record, arrays = read(name)
    found = next(p for p in record["parts"] if p["name"] == piece)
    prefix = piece + "."
    return found, {
        k.removeprefix(prefix): torch.from_numpy(np.asarray(v)) for k, v in arrays.items() if k.startswith(prefix)
    }


def part_state_dict(record: dict[str, Any]) -> dict[str, Tensor]:
    return {entry["key"]: fill(entry) for entry in record["state_dict"]}


def strided(x: Tensor, count: int = 64) -> Tensor:
    """The slice the golden files keep of a large tensor."""
    flat = x.reshape(-1)
    return flat[torch.arange(count) * flat.numel() // count]


def relative_error(got: Tensor, want: Tensor) -> float:
    """Largest difference over the largest wanted magnitude."""
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def listen(model: nn.Module, *names: str) -> dict[str, Tensor]:
    """Return what modules put out when the model is run next, by their names."""
    heard: dict[str, Tensor] = {}

    def keep(_module: nn.Module, _args: tuple, output: Tensor, *, name: str) -> None:
        heard[name] = output

    for name in names:
        model.get_submodule(name).register_forward_hook(partial(keep, name=name))
    return heard
