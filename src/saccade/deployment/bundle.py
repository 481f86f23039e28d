"""Metadata of exported models: task, framing, versions; and safe reading of exported files."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ..data.spec import InputSpec
from ..runs.metadata import check_inputs
from ..settings import ConfigError
from ..support.files import read_small
from ..tasks import Task
from ..tasks.opening import find_task

KEY = "saccade"  # key in ONNX metadata
MEMBER = "extra/saccade.json"  # path in a torch.export package, inside the archive's folder
FRAMED = "framed"  # name of the graph's framed images, uint8 B, C, S, S
LIMIT = 16 * 2**20  # most bytes of JSON in a package
ONNX_LIMIT = 2**31  # largest graph in bytes, the limit of protobuf
INSTALL = "pip install 'saccade[export]'"


class ExportError(ValueError):
    """A model cannot be exported, or an exported file cannot be used."""


@dataclass(frozen=True)
class Bundle:
    """Metadata needed to run a graph."""

    name: str  # name of the model
    outputs: tuple[str, ...]  # names of the outputs in order: classes, labels or columns of numbers
    img_size: int  # side of the square images
    channels: int  # channels of the images, RGB or grey
    mean: tuple[float, ...]  # by channel, 0 to 1; subtracted inside the graph
    std: tuple[float, ...]  # by channel; divided by inside the graph
    # length that the shorter side is resized to before the centre crop; None: no crop
    shorter: int | None = None
    any_size: bool = False  # whether the graph takes images of any size
    raw: bool = False  # whether the graph includes framing; it does not in files of earlier versions
    interpolation: str = "bicubic"  # interpolation for resizing
    precision: str = "float32"  # float32, float16 or int8
    parameters: int = 0  # number of parameters
    plugins: tuple[str, ...] = ()  # names of attached plug-ins
    versions: tuple[tuple[str, str], ...] = ()  # versions of the exporting packages
    task: str = InputSpec.task  # name of the task
    # what the task needs to decode outputs: thresholds, the scale of numbers
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: nn.Module, spec: InputSpec, *, name: str, plugins: tuple[str, ...] = (), **more: Any
    ) -> "Bundle":
        """Return the metadata of a model."""
        return cls(
            name=name,
            outputs=tuple(spec.outputs),
            img_size=spec.img_size,
            channels=spec.in_chans,
            mean=tuple(spec.mean),
            std=tuple(spec.std),
            shorter=spec.shorter,
            parameters=sum(p.numel() for p in model.parameters()),
            plugins=plugins,
            task=spec.task,
            extra=dict(spec.extra),
            **more,
        )

    @property
    def kind(self) -> type[Task]:
        """The model's task."""
        return find_task(self.task)

    @property
    def spec(self) -> InputSpec:
        """The model's inputs and outputs."""
        mean, std = list(self.mean), list(self.std)
        shared: dict[str, Any] = {"shorter": self.shorter, "task": self.task, "extra": dict(self.extra)}
        return InputSpec(self.outputs, self.channels, self.img_size, mean, std, **shared)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, with the outputs also under the task's own key."""
        record = asdict(self) | {"versions": dict(self.versions)}
        record |= {"answers_in": "square"} if self.spec.framing.fit else {}
        return record | {self.kind.presenter.outputs_key: list(self.outputs)}

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str, *, source: str) -> "Bundle":
        """Read the text of `to_json`; every field is checked, since files may come from elsewhere."""
        try:
            given = json.loads(text)
            kind = _known_task(given.get("task", cls.task), source)
            record = {name: _tupled(value) for name, value in given.items() if name in BUNDLE_FIELDS}
            record |= {"outputs": _tupled(_named_outputs(given, kind)), "extra": given.get("extra", {})}
            bundle = cls(**record)
            bundle._check()
        except ExportError:
            raise
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise ExportError(
                f"{source}: its description is damaged ({str(error)[:200]}); export the run again"
            ) from None
        return bundle

    def _check(self) -> None:
        check_inputs(vars(self) | {"in_chans": self.channels})
        if type(self.parameters) is not int or self.parameters < 0:
            raise ValueError(f"parameters = {self.parameters!r}; it must be a whole number")
        if type(self.any_size) is not bool or type(self.raw) is not bool or not isinstance(self.plugins, tuple):
            raise ValueError("any_size and raw must be true or false, and plugins a list")
        if not all(isinstance(name, str) for name in (*self.plugins, self.name, self.precision)):
            raise ValueError("name, precision and plugins must be text")
        if not all(isinstance(entry, tuple) and len(entry) == 2 for entry in self.versions):
            raise ValueError("versions must be names with values")
        if self.interpolation != "bicubic":
            raise ValueError(f"interpolation {self.interpolation!r} is not supported by this version")
        if not isinstance(self.extra, dict):
            raise ValueError("extra must be a mapping of names to values")
        self.kind.check_spec(self.spec)


BUNDLE_FIELDS = tuple(field.name for field in fields(Bundle))


def _known_task(name: Any, source: str) -> type[Task]:
    if not isinstance(name, str):
        raise ValueError("task must be a name")
    try:
        return find_task(name)
    except ConfigError as error:
        raise ExportError(f"{source} is for an unknown task: {error}; install the package that provides it") from None


def _named_outputs(given: dict[str, Any], kind: type[Task]) -> Any:
    """Return the names of the outputs, which earlier versions stored under the task's key only."""
    named = [given[key] for key in ("outputs", kind.presenter.outputs_key) if key in given]
    if not named or any(names != named[0] for names in named):
        raise ValueError(f"outputs must be named once, or identically as {kind.presenter.outputs_key}")
    return named[0]


def _tupled(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((str(key), str(entry)) for key, entry in value.items())
    return tuple(value) if isinstance(value, list) else value


def require_onnxruntime() -> ModuleType:
    """Import onnxruntime, or raise an error that says how to install it."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"a .onnx file needs {error.name}; install it with: {INSTALL}") from None
    return onnxruntime


def safe_onnx_bytes(path: Path, *, framed: bool = False) -> tuple[bytes, Bundle]:
    """Return a file's bytes, without framing if `framed`, and its metadata; refuse files not written by saccade.

    Graphs with external weights are refused, so that no other file is ever read, and so are graphs with loops and
    functions, which may not terminate. Graphs written by saccade have neither.
    """
    import onnx

    data = read_small(path, most=ONNX_LIMIT)
    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # protobuf's type, whose module differs between versions
        raise ExportError(f"{path} is damaged or not an ONNX file; export the run again: saccade export RUN") from None
    outside = next(
        (tensor for tensor in _tensors(model.graph) if tensor.data_location == onnx.TensorProto.EXTERNAL), None
    )
    if outside is not None or any(_outside(function) for function in model.functions):
        raise ExportError(
            f"{path} refers to weights in other files, which a file of `saccade export` never does; it was not opened"
        )
    if model.functions or any(_has_graphs(node) for node in model.graph.node):
        raise ExportError(
            f"{path} contains loops, branches or functions, which a file of `saccade export` never does and which "
            "may not terminate; it was not opened"
        )
    record = {entry.key: entry.value for entry in model.metadata_props}.get(KEY)
    bundle = None if record is None else Bundle.from_json(record, source=str(path))
    names = [value.name for value in model.graph.input], [value.name for value in model.graph.output]
    if bundle is None or names != (list(bundle.kind.codec(bundle.spec).graph_inputs()), [bundle.kind.codec.output]):
        raise ExportError(
            f"{path} was not written by saccade: it has no description of its outputs and of the preprocessing of "
            "images. Create one with: saccade export RUN"
        )
    return _without_framing(model) if framed and bundle.raw else data, bundle


def _without_framing(model: Any) -> bytes:
    """Return the bytes of a graph without its framing.

    The framed images get the input's name, since the rest may read its batch size.
    """
    import onnx

    needed, kept = {value.name for value in model.graph.output}, []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output) and FRAMED not in node.output:
            kept.append(node)
            needed.update(node.input)
    if FRAMED not in needed:
        raise ExportError("the graph does not preprocess images as described; export the run again: saccade export RUN")
    image = model.graph.input[0]
    raw_input = onnx.helper.make_tensor_value_info(image.name, onnx.TensorProto.UINT8, None)
    for node in kept:
        for place, name in enumerate(node.input):
            if name == FRAMED:
                node.input[place] = image.name
    nodes = kept[::-1]
    del model.graph.node[:], model.graph.input[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    model.graph.input.append(raw_input)
    return model.SerializeToString()


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield every tensor of a graph and its subgraphs."""
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
    """Read the metadata of a torch.export package as a plain archive, without running anything."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next((info for info in archive.infolist() if info.filename.endswith(MEMBER)), None)
            if member is None:
                raise ExportError(
                    f"{path} was not written by saccade; create one with: saccade export RUN --format pt2"
                )
            if member.file_size > LIMIT:
                raise ExportError(f"{path}: its description is too large ({member.file_size} bytes); it was not opened")
            return Bundle.from_json(archive.read(member).decode("utf-8"), source=str(path))
    except ExportError:
        raise
    except Exception:  # zipfile raises many types on damaged archives
        raise ExportError(f"{path} is damaged or not a torch.export package; export the run again") from None
