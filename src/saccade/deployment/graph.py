"""From a module to a graph that other programs run: bytes of images of any size in, raw answers out."""

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

TOKENS = 11  # in a row of an example text
TRACED = (96, 128)  # a size of example images; any other will do
UINT8 = 2  # as ONNX counts types
NOISY = ("torch.onnx", "onnxscript", "onnx_ir", "torch.export", "torch._export", "torch.fx", "torch._dynamo")


class WithPreprocessing(nn.Module):
    """A model and its task, with framing and normalisation inside."""

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
        """Return raw answers, B, ... float32, to images of any one size, uint8 B, C, H, W."""
        return self.ask(frame(image, self.spec))

    def ask(self, framed: Tensor) -> Tensor:
        """Return raw answers to framed images, uint8 B, C, S, S."""
        images = (framed.float() / 255 - self.mean) / self.std
        return self.task({"image": images.to(self.dtype)})["output"].float()

    def outputs(self, images: Tensor) -> np.ndarray:
        """Return the raw answers to framed images as a predictor does."""
        with torch.inference_mode():
            return self.ask(images).numpy()


class WithTokens(WithPreprocessing):
    """A model that reads texts, perhaps with an image, and its task; the tokenizer stays outside."""

    def __init__(self, model: nn.Module, spec: InputSpec) -> None:
        super().__init__(model, spec)
        self.names = find_task(spec.task).codec(spec).graph_inputs()
        self.any_width = "image" not in self.names  # a question is in a row of fixed width, as in training
        self.width = TOKENS if self.any_width else int(spec.extra["tokens"]["limit"])

    def examples(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return what the graph is traced with, three samples an input; one has padding, so that the mask counts."""
        made = {name: torch.ones(3, self.width, dtype=torch.int64) for name in self.names}
        made["attention_mask"][1, self.width - 2 :] = 0
        return tuple(image.repeat(3, 1, 1, 1) if name == "image" else row for name, row in made.items())

    def forward(self, *rows: Tensor) -> Tensor:
        """Return raw answers, B, ... float32, to rows of tokens, B, N each, and images, uint8 B, C, S, S."""
        asked = dict(zip(self.names, rows, strict=True))
        if "image" in asked:
            asked["image"] = (asked["image"].float() / 255 - self.mean) / self.std
        return self.task(asked)["output"].float()

    def outputs(self, images: Tensor) -> np.ndarray:
        """Return the raw answers to packed texts as a predictor does."""
        assert self.task.spec is not None
        with torch.inference_mode():
            return self(*self.task.codec(self.task.spec).unpack(images).values()).numpy()


def wrap(model: nn.Module, spec: InputSpec) -> WithPreprocessing:
    """Return a model as its graph is asked."""
    return (WithPreprocessing if find_task(spec.task).reader.reads == "image" else WithTokens)(model, spec).eval()


def trace(wrapped: WithPreprocessing) -> ExportedProgram:
    """Return the graph of a module in evaluation mode on the CPU, for any number of images of a size, or of texts."""
    dynamic: Any = torch.export.Dim.DYNAMIC
    open_sides = {0: dynamic, 2: dynamic, 3: dynamic}
    if wrapped.spec.in_chans == 1:
        open_sides[1] = dynamic  # a model of grey images takes RGB as well
    examples: tuple[Tensor, ...] = (torch.zeros(2, 3, *TRACED, dtype=torch.uint8),)
    shapes: Any = (open_sides,)
    if isinstance(wrapped, WithTokens):
        side = wrapped.spec.img_size
        examples = wrapped.examples(torch.zeros(1, wrapped.spec.in_chans, side, side, dtype=torch.uint8))
        shapes = (tuple({0: dynamic, **({1: dynamic} if wrapped.any_width else {})} for _ in examples),)
    with quietly(), torch.no_grad(), removed(wrapped):
        try:
            program = torch.export.export(wrapped, examples, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # tracing a foreign module can fail in any way
            name = type(wrapped.model).__name__
            raise ExportError(f"torch.export cannot trace {name}: {shortened(error)}") from error
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)  # lines of source with this machine's paths
    return program


def write_onnx(program: ExportedProgram, path: Path, bundle: Bundle) -> None:
    """Write a graph as one ONNX file, the description in its metadata."""
    try:
        from onnxscript import optimizer
    except ImportError as error:
        raise ImportError(f"to write a .onnx file takes {error.name}; install it with: {INSTALL}") from None
    with quietly():
        try:
            # Its rewriter takes what is within 1e-8 of zero for zero, and drops the eps of a denominator with it:
            # constants are folded here, and the rest is left to onnxruntime.
            written = torch.onnx.export(
                program,
                dynamo=True,
                input_names=list(bundle.kind.codec(bundle.spec).graph_inputs()),
                output_names=[bundle.kind.codec.output],
                verbose=False,
                optimize=False,
            )
        except Exception as error:
            raise ExportError(f"the graph of {bundle.name} cannot be said in ONNX: {shortened(error)}") from error
    assert written is not None
    model: Any = written.model
    with quietly():
        optimizer.inline(model)
        optimizer.fold_constants(model)
        optimizer.remove_unused_nodes(model)
    for holder in (model.graph, *model.functions.values()):
        for node in holder.all_nodes():
            node.metadata_props.clear()  # traces of this machine, a third of a small file
            node.doc_string = None
    model.metadata_props[KEY] = bundle.to_json()
    for node in model.graph:
        if node.op_type == "Cast" and node.attributes["to"].value == UINT8:  # what the framing ends with
            node.outputs[0].name = FRAMED
    model.producer_name, model.doc_string = (
        "saccade",
        f"{bundle.name}: {', '.join(bundle.kind.codec(bundle.spec).graph_inputs())} to {bundle.kind.codec.output}",
    )
    written.save(str(path), external_data=False)


def write_program(program: ExportedProgram, path: Path, bundle: Bundle) -> None:
    """Write a graph as a torch.export package, the description as JSON among its extra files."""
    draft = path.with_name(f"{path.name}.pt2")  # the writer insists on the ending
    with quietly():
        torch.export.save(program, str(draft), extra_files={Path(MEMBER).name: bundle.to_json()})
    os.replace(draft, path)


def shortened(error: BaseException) -> str:
    """Return the part of an error's message that says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}" if lines else type(error).__name__


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the exporters' warnings and log lines to themselves."""
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
    """Return a copy of a model in float16, which takes the same bytes and gives float32 answers."""
    return WithPreprocessing(copy.deepcopy(model), spec, dtype=torch.float16).eval()
