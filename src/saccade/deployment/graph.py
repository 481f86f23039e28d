"""Trace a model to a graph that takes images of any size and returns raw outputs."""

import copy
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..data.spec import InputSpec
from ..kernels import removed
from ..tasks.opening import find_task
from .bundle import FRAMED, INSTALL, KEY, MEMBER, Bundle, ExportError
from .resampling import frame

TOKENS = 11  # tokens of an example text
TRACED = (96, 128)  # size of example images; arbitrary
UINT8 = 2  # ONNX's type id
NOISY = ("torch.onnx", "onnxscript", "onnx_ir", "torch.export", "torch._export", "torch.fx", "torch._dynamo")


class WithPreprocessing(nn.Module):
    """A model and its task, including framing and normalisation."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, spec: InputSpec, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec, self.dtype = spec, dtype
        self.task = find_task(spec.task).build(model.to(dtype), spec)
        self.register_buffer("mean", torch.tensor(spec.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(-1, 1, 1), persistent=False)

    @property
    def model(self) -> nn.Module:
        """The model itself."""
        return self.task.model

    def forward(self, image: Tensor) -> Tensor:
        """Return raw outputs, B, ... float32, for images of any size, uint8 B, C, H, W."""
        return self.ask(frame(image, self.spec))

    def ask(self, framed: Tensor) -> Tensor:
        """Return raw outputs for framed images, uint8 B, C, S, S."""
        images = (framed.float() / 255 - self.mean) / self.std
        return self.task({"image": images.to(self.dtype)})["output"].float()

    def outputs(self, images: Tensor) -> np.ndarray:
        """Return raw outputs for framed images, as a predictor does."""
        with torch.inference_mode():
            return self.ask(images).numpy()


class WithTokens(WithPreprocessing):
    """A text model, optionally with images, and its task, without the tokenizer."""

    def __init__(self, model: nn.Module, spec: InputSpec) -> None:
        super().__init__(model, spec)
        self.codec: Any = find_task(spec.task).codec(spec)
        self.names = self.codec.graph_inputs()
        self.any_width = "image" not in self.names  # questions have a fixed width, as in training
        self.width = TOKENS if self.any_width else int(spec.extra["tokens"]["limit"])

    def examples(self) -> tuple[Tensor, ...]:
        """Return example inputs with three samples, one of them padded so that the mask is used."""
        made = {name: torch.ones(3, self.width, dtype=torch.int64) for name in self.names}
        made["attention_mask"][1, self.width - 2 :] = 0
        return tuple((made if self.any_width else {**made, **self.codec.example_images(3)}).values())

    def forward(self, *rows: Tensor) -> Tensor:
        """Return raw outputs, B, ... float32, for tokens, B, N, and images, uint8 B, ..."""
        asked = dict(zip(self.names, rows, strict=True))
        if "image" in asked:
            asked["image"] = (asked["image"].float() / 255 - self.mean) / self.std
        return self.task(asked)["output"].float()

    def outputs(self, images: Tensor) -> np.ndarray:
        """Return raw outputs for packed texts, as a predictor does."""
        assert self.task.spec is not None
        with torch.inference_mode():
            return self(*self.task.codec(self.task.spec).unpack(images).values()).numpy()


def wrap(model: nn.Module, spec: InputSpec) -> WithPreprocessing:
    """Wrap a model with the inputs of its graph."""
    return (WithPreprocessing if find_task(spec.task).reader.reads == "image" else WithTokens)(model, spec).eval()


def trace(wrapped: WithPreprocessing) -> ExportedProgram:
    """Trace a module in evaluation mode on the CPU, with dynamic batch and image sizes."""
    dynamic: Any = torch.export.Dim.DYNAMIC
    open_sides = {0: dynamic, 2: dynamic, 3: dynamic}
    if wrapped.spec.in_chans == 1:
        open_sides[1] = dynamic  # models of grey images also take RGB
    examples: tuple[Tensor, ...] = (torch.zeros(2, 3, *TRACED, dtype=torch.uint8),)
    shapes: Any = (open_sides,)
    if isinstance(wrapped, WithTokens):
        examples = wrapped.examples()
        shapes = (tuple({0: dynamic, **({1: dynamic} if wrapped.any_width else {})} for _ in examples),)
    with quietly(), torch.no_grad(), removed(wrapped):
        try:
            program = torch.export.export(wrapped, examples, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # tracing can fail in any way
            name = type(wrapped.model).__name__
            raise ExportError(f"torch.export cannot trace {name}: {shortened(error)}") from error
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)  # source lines with local paths
    return program


def write_onnx(program: ExportedProgram, path: Path, bundle: Bundle) -> None:
    """Write a graph as one ONNX file with metadata."""
    try:
        from onnxscript import optimizer
    except ImportError as error:
        raise ImportError(f"writing a .onnx file needs {error.name}; install it with: {INSTALL}") from None
    with quietly():
        try:
            # The exporter's optimizer rounds values below 1e-8 to zero, including the eps of denominators; constants
            # are folded here, and onnxruntime does the rest.
            written = torch.onnx.export(
                program,
                dynamo=True,
                input_names=list(bundle.kind.codec(bundle.spec).graph_inputs()),
                output_names=[bundle.kind.codec.output],
                verbose=False,
                optimize=False,
            )
        except Exception as error:
            raise ExportError(f"the graph of {bundle.name} cannot be written as ONNX: {shortened(error)}") from error
    assert written is not None
    model: Any = written.model
    with quietly():
        optimizer.inline(model)
        optimizer.fold_constants(model)
        optimizer.remove_unused_nodes(model)
    for holder in (model.graph, *model.functions.values()):
        for node in holder.all_nodes():
            node.metadata_props.clear()  # local stack traces, a third of a small file
            node.doc_string = None
    model.metadata_props[KEY] = bundle.to_json()
    for node in model.graph:
        if node.op_type == "Cast" and node.attributes["to"].value == UINT8:  # the end of the framing
            node.outputs[0].name = FRAMED
    model.producer_name, model.doc_string = (
        "saccade",
        f"{bundle.name}: {', '.join(bundle.kind.codec(bundle.spec).graph_inputs())} to {bundle.kind.codec.output}",
    )
    written.save(str(path), external_data=False)


def write_program(program: ExportedProgram, path: Path, bundle: Bundle) -> None:
    """Write a graph as a torch.export package with JSON metadata among its extra files."""
    draft = path.with_name(f"{path.name}.pt2")  # required by the writer
    with quietly():
        torch.export.save(program, str(draft), extra_files={Path(MEMBER).name: bundle.to_json()})
    os.replace(draft, path)


def shortened(error: BaseException) -> str:
    """Return the relevant part of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}" if lines else type(error).__name__


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the exporters' warnings and logs."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def halved(model: nn.Module, spec: InputSpec) -> WithPreprocessing:
    """Return a copy of a model in float16, with the same inputs and float32 outputs."""
    return WithPreprocessing(copy.deepcopy(model), spec, dtype=torch.float16).eval()
