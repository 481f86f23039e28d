"""What an exported model carries besides its graph: classes, framing and versions; and how it is read safely."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ..building import Shape
from ..files import read_small
from ..metadata import check_inputs

KEY = "saccade"  # of ONNX's metadata
MEMBER = "extra/saccade.json"  # of a torch.export package, behind the archive's own folder
LIMIT = 16 * 2**20  # bytes of JSON a package may carry
ONNX_LIMIT = 2**31  # bytes of a graph, which is all that its format can hold
INSTALL = "pip install 'saccade[export]'"


class ExportError(ValueError):
    """A model that could not be exported, or an exported file that cannot be used."""


@dataclass(frozen=True)
class Bundle:
    """What is needed beside a graph to ask it.

    Args:
        name: of the model.
        classes: their names, in the order of the logits.
        img_size: side of the square pictures it was made for.
        channels: of the pictures, RGB or grey.
        mean: of each channel, 0 to 1; subtracted inside the graph.
        std: of each channel; divided by inside the graph.
        shorter: what a picture's shorter side is brought to before its middle is taken; None takes all of it.
        any_size: whether the graph takes other sizes than `img_size`.
        interpolation: by which a picture is resized before it is given.
        precision: float32, float16 or int8.
        parameters: how many the model has.
        plugins: what is attached to it.
        versions: of what wrote it.
    """

    name: str
    classes: tuple[str, ...]
    img_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shorter: int | None = None
    any_size: bool = False
    interpolation: str = "bicubic"
    precision: str = "float32"
    parameters: int = 0
    plugins: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, model: nn.Module, shape: Shape, *, name: str, plugins: tuple[str, ...] = (), **more: Any) -> "Bundle":
        """Return what a model and its pictures' shape say."""
        return cls(
            name=name,
            classes=tuple(shape.classes),
            img_size=shape.img_size,
            channels=shape.in_chans,
            mean=tuple(shape.mean),
            std=tuple(shape.std),
            shorter=shape.shorter,
            parameters=sum(p.numel() for p in model.parameters()),
            plugins=plugins,
            **more,
        )

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self) | {"versions": dict(self.versions)})

    @classmethod
    def from_json(cls, text: str, *, source: str) -> "Bundle":
        """Read what `to_json` wrote; a file from elsewhere may say anything, so every field is looked at."""
        try:
            given = json.loads(text)
            bundle = cls(**{name: _tupled(value) for name, value in given.items() if name in BUNDLE_FIELDS})
            bundle._check()
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ExportError(
                f"{source}: its description is damaged ({str(error)[:200]}); export the run again"
            ) from None
        return bundle

    def _check(self) -> None:
        check_inputs(vars(self) | {"in_chans": self.channels})
        if type(self.parameters) is not int or self.parameters < 0:
            raise ValueError(f"parameters = {self.parameters!r}; it is a whole number")
        if type(self.any_size) is not bool or not isinstance(self.plugins, tuple):
            raise ValueError("any_size is true or false, and plugins is a list")
        if not all(isinstance(name, str) for name in (*self.plugins, self.name, self.precision)):
            raise ValueError("name, precision and plugins are text")
        if not all(isinstance(entry, tuple) and len(entry) == 2 for entry in self.versions):
            raise ValueError("versions is names with values")
        if self.interpolation != "bicubic":
            raise ValueError(f"interpolation {self.interpolation!r} is not known to this version")


BUNDLE_FIELDS = tuple(field.name for field in fields(Bundle))


def _tupled(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((str(key), str(entry)) for key, entry in value.items())
    return tuple(value) if isinstance(value, list) else value


def require_onnxruntime() -> ModuleType:
    """Return onnxruntime, or say how to get it."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"a .onnx file needs {error.name}; install it with: {INSTALL}") from None
    return onnxruntime


def safe_onnx_bytes(path: Path) -> tuple[bytes, Bundle]:
    """Return a file's bytes and what it says of itself, after refusing what saccade did not write.

    A graph may name other files to take weights from; none written here does, and one that does is refused, so that
    no file besides the one given is ever read. A graph may hold loops, which need not end, and functions, which may
    unfold without end; none written here does either.
    """
    import onnx

    data = read_small(path, most=ONNX_LIMIT)
    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # protobuf's own kind, which is not always importable from the same place
        raise ExportError(f"{path} is damaged or no ONNX file; export the run again: saccade export RUN") from None
    outside = next(
        (tensor for tensor in _tensors(model.graph) if tensor.data_location == onnx.TensorProto.EXTERNAL), None
    )
    if outside is not None or any(_outside(function) for function in model.functions):
        raise ExportError(
            f"{path} takes weights from other files, which a file of `saccade export` never does; it is not opened"
        )
    if model.functions or any(_has_graphs(node) for node in model.graph.node):
        raise ExportError(
            f"{path} holds loops, branches or functions, which a file of `saccade export` never does and which need "
            "not end; it is not opened"
        )
    told = {entry.key: entry.value for entry in model.metadata_props}.get(KEY)
    names = [value.name for value in model.graph.input], [value.name for value in model.graph.output]
    if told is None or names != (["image"], ["logits"]):
        raise ExportError(
            f"{path} was not written by saccade: it says nothing of its classes and of how pictures are framed. "
            "Make one with: saccade export RUN"
        )
    return data, Bundle.from_json(told, source=str(path))


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield every tensor in a graph and in the graphs inside it."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _attribute_tensors(node)


def _attribute_tensors(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for inner in (attribute.g, *attribute.graphs):
            yield from _tensors(inner)


def _has_graphs(node: Any) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _outside(function: Any) -> bool:
    return any(tensor.data_location == 1 for node in function.node for tensor in _attribute_tensors(node))


def read_program_bundle(path: Path) -> Bundle:
    """Return what a torch.export package says of itself, read as a plain archive: nothing in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next((info for info in archive.infolist() if info.filename.endswith(MEMBER)), None)
            if member is None:
                raise ExportError(f"{path} was not written by saccade; make one with: saccade export RUN --format pt2")
            if member.file_size > LIMIT:
                raise ExportError(f"{path}: its description is {member.file_size} bytes; it is not opened")
            return Bundle.from_json(archive.read(member).decode("utf-8"), source=str(path))
    except ExportError:
        raise
    except Exception:  # zipfile raises many kinds on damaged archives
        raise ExportError(f"{path} is damaged or no torch.export package; export the run again") from None
