"""A tiny run, a tiny ONNX file and a predictor that needs no model, for tests of deployment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

import saccade
from saccade.building.build import build_model
from saccade.data.spec import InputSpec
from saccade.deployment.bundle import KEY, Bundle
from saccade.deployment.predictor import Predictor
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig
from support.training import tiny

CLASSES = ("red", "green", "blue")
TINY = {"depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8}


def tiny_run(folder: Path, *, name: str = "vit_tiny_patch16_224", img_size: int = 32, **config: Any) -> Path:
    """Write what a finished run leaves of a model with weights that were never trained."""
    config.setdefault("options", TINY if name.startswith("vit") else {})
    settings = ModelConfig(name=name, **config)
    spec = InputSpec(CLASSES, 3, img_size, [0.5, 0.4, 0.3], [0.2, 0.25, 0.3], img_size + 4)
    folder.mkdir(parents=True, exist_ok=True)
    model = build_model(settings, spec, seed=3)
    save_model(folder / "model.safetensors", model.state_dict(), settings, spec)
    return folder


COLUMNS = ("brightness", "-redness")  # of numbers, one of them named like a formula


def colourful(folder: Path, *, count: int = 24) -> list[Path]:
    """Write images that have red, green and blue or not, and beside them `labels.csv` and `numbers.csv` on them."""
    folder.mkdir(parents=True, exist_ok=True)
    files, labels, numbers = [], ["path,labels"], [",".join(("path", *COLUMNS))]
    for index in range(count):
        pixels = np.random.default_rng(index).integers(0, 60, (20, 24, 3), dtype=np.uint8)
        has = [bool(index >> bit & 1) for bit in range(3)]
        pixels += np.array([150 * one for one in has], dtype=np.uint8)
        files.append(folder / f"{index:02d}.png")
        Image.fromarray(pixels).save(files[-1])
        labels.append(f"{files[-1].name},{'|'.join(name for name, one in zip(CLASSES, has, strict=True) if one)}")
        numbers.append(f"{files[-1].name},{pixels.mean():.3f},{pixels[..., 0].mean() - 200:.3f}")
    (folder / "labels.csv").write_text("\n".join(labels))
    (folder / "numbers.csv").write_text("\n".join(numbers))
    return files


def trained_run(folder: Path, listed: Path) -> Path:
    """Train a ViT of one block, which is traced in moments, on a list of `colourful`, whose columns say the task."""
    settings = tiny(data__img_size=16, data__workers=0, model__options=TINY)
    saccade.train(str(listed), model="vit_tiny_patch16_224", epochs=1, out=folder, settings=settings, quiet=True)
    return folder


BUNDLE = Bundle("colours", CLASSES, 8, 3, (0.0,) * 3, (1.0,) * 3, parameters=9)


def tiny_onnx(path: Path, *, told: str | None = None, bundle: Bundle = BUNDLE) -> Path:
    """Write an ONNX file whose logits are the mean of each channel over 16."""
    from onnx import TensorProto, helper, save_model

    nodes = [
        helper.make_node("Cast", ["image"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("GlobalAveragePool", ["numbers"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Div", ["flat", "sixteen"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["b", 3, "h", "w"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 3])],
        [helper.make_tensor("sixteen", TensorProto.FLOAT, [1], [16.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {KEY: bundle.to_json() if told is None else told})
    save_model(model, str(path))
    return path


class Colours(Predictor):
    """Says which channel is the strongest; remembers how many images it was asked about at once."""

    def __init__(self, img_size: int = 8) -> None:
        super().__init__("colours", "run", bundle=replace(BUNDLE, img_size=img_size))
        self.batches: list[int] = []

    def outputs(self, images: Tensor) -> np.ndarray:
        """Return the mean of each channel over 16."""
        self.batches.append(len(images))
        return images.float().mean((2, 3)).numpy() / 16
