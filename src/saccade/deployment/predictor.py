"""Predictors: a common interface of runs, exported files and timm models."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..building.loading import LoadedModel, find_target, open_model
from ..data.augment import Normalize
from ..data.framing import at_once
from ..data.spec import InputSpec
from ..kernels import Guard
from ..plugins import attached
from ..support.files import physical_memory
from ..tasks import Task
from .bundle import Bundle, ExportError, read_program_bundle, require_onnxruntime, safe_onnx_bytes

RUN_SECONDS = 120.0  # time limit for a batch of an ONNX graph
MEMORY_SHARE = 0.5  # of the machine's memory, for ONNX graphs


class Predictor(ABC):
    """Base of predictors, for any task.

    Attributes:
        name: name of the model.
        kind: "run", "timm", "module", "onnx" or "program".
        spec: the model's inputs and outputs.
        task: the task.
        codec: packs inputs and decodes outputs.
        presenter: formats answers.
        img_size: side of the square images.
        channels: channels of the images, 3 or 1.
        framing: framing of decoded images.
        model: the module; None for exported files.
    """

    model: nn.Module | None = None

    def __init__(self, name: str, kind: str, *, bundle: Bundle) -> None:
        self.name, self.kind, self.bundle = name, kind, bundle
        self.spec: InputSpec = bundle.spec
        self.task: type[Task] = bundle.kind
        self.codec = bundle.kind.codec(bundle.spec)
        self.presenter = bundle.kind.presenter(bundle.spec)
        self.img_size, self.channels, self.framing = bundle.img_size, bundle.channels, self.spec.framing

    @abstractmethod
    def outputs(self, images: Tensor) -> np.ndarray:
        """Return raw outputs, B, ... float32, for framed images, uint8 B, C, H, W; thread-safe."""

    def rows(self, images: Tensor) -> np.ndarray:
        """Return decoded outputs for framed images, uint8 B, C, S, S; thread-safe.

        One row an image: class probabilities, label probabilities, or numbers in their units, as for
        `predictor.presenter.describe`; scores of pixels or objects, which `predictor.codec.unframe` transforms to the
        original image first.
        """
        raw = self.outputs(self.check(images) if self.task.reader.reads == "image" else images)
        try:
            if raw.shape[:1] != (len(images),):
                raise ValueError(f"its output for {len(images)} images has the shape {raw.shape}")
            return self.codec.read_output(raw)
        except ValueError as error:
            raise ExportError(f"{self.name}: {error}") from None

    def about(self) -> dict[str, Any]:
        """Return the predictor's description as JSON values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "task": self.task.name,
            "outputs": list(self.spec.outputs),
            self.presenter.outputs_key: list(self.spec.outputs),
            "img_size": self.img_size,
            "parameters": self.bundle.parameters,
            "plugins": list(self.bundle.plugins),
        }

    def check(self, images: Tensor) -> Tensor:
        """Return the images if they have the right shape and type, or raise."""
        sides = tuple(images.shape[2:])
        if (
            images.dtype is not torch.uint8
            or images.ndim != 4
            or images.shape[1] != self.channels
            or (self.framing.canvas(*sides) != sides)
        ):
            raise ValueError(
                f"got images of shape {tuple(images.shape)} and type {str(images.dtype).removeprefix('torch.')}; "
                f"{self.name} takes uint8 of shape B, {self.channels}, {self.img_size}, {self.img_size}. Preprocess "
                "them with `predictor.framing`"
            )
        return images


def each_row(predictor: Predictor, samples: Sequence[Tensor]) -> list[np.ndarray]:
    """Return the rows of packed samples, in order; images of one shape are asked together, a few if they are large."""
    images, shapes = predictor.task.reader.reads == "image", dict[Any, list[int]]()
    for place, sample in enumerate(samples):
        shapes.setdefault(sample.shape if images else None, []).append(place)
    found: dict[int, np.ndarray] = {}
    for shape, places in shapes.items():
        step = len(places) if shape is None else at_once(shape)
        for some in (places[begin : begin + step] for begin in range(0, len(places), step)):
            rows = predictor.rows(predictor.codec.stack([samples[place] for place in some]))
            found |= dict(zip(some, rows, strict=True))
    return [found[place] for place in range(len(samples))]


class TorchPredictor(Predictor):
    """A predictor of a PyTorch module, with kernels.

    Args:
        loaded: the opened module, on its device.
        kernels: "auto", "off" or names of `saccade kernels`.
    """

    def __init__(self, loaded: LoadedModel, *, kernels: str = "auto") -> None:
        bundle = Bundle.of(loaded.model, loaded.spec, name=loaded.name, plugins=plugin_names(loaded.model))
        super().__init__(loaded.name, loaded.origin, bundle=bundle)
        self.model, self.device = loaded.model, loaded.device
        self.normalize = Normalize(loaded.spec.mean, loaded.spec.std, device=self.device)
        self._task = self.task.build(loaded.model, loaded.spec).to(self.device).eval()
        self.guard = Guard(self._task, "infer", kernels)
        self._lock = threading.Lock()  # modules may cache by size, so one thread at a time

    def outputs(self, images: Tensor) -> np.ndarray:
        """Return raw outputs for images."""
        with self._lock, torch.inference_mode():
            asked = self.codec.unpack(images.to(self.device))
            if "image" in asked:
                asked["image"] = self.normalize(asked["image"])
            return self.guard.run(lambda: self._task(asked)["output"].float().cpu().numpy())


class OnnxPredictor(Predictor):
    """A predictor of an exported ONNX file, run by onnxruntime with limits on time and memory.

    Args:
        path: the .onnx file; files with external data are refused.
        device: "cpu" or "cuda".
        framed: remove the graph's own framing, since images are already framed.
    """

    def __init__(self, path: str | Path, *, device: str = "cpu", framed: bool = True) -> None:
        self.runtime, self.path = require_onnxruntime(), Path(path)
        data, bundle = safe_onnx_bytes(self.path, framed=framed)
        super().__init__(self.path.name, "onnx", bundle=bundle)
        options = self.runtime.SessionOptions()
        options.log_severity_level = 4  # errors are raised
        if _limit_memory(self.runtime):
            options.add_session_config_entry("session.use_env_allocators", "1")
        providers = _providers(self.runtime, device)
        try:
            self.session = self.runtime.InferenceSession(data, options, providers=providers)
        except Exception as error:  # onnxruntime has many error types
            version, reason = self.runtime.__version__, str(error)[:300]
            raise ExportError(f"{path} cannot be opened by onnxruntime {version}: {reason}; export it again") from None

    def outputs(self, images: Tensor) -> np.ndarray:
        """Return raw outputs for images; onnxruntime is thread-safe."""
        options = self.runtime.RunOptions()
        options.log_severity_level = 4
        late = threading.Timer(RUN_SECONDS, setattr, (options, "terminate", True))  # checked between operations
        late.daemon = True
        late.start()
        try:
            asked = self.codec.unpack(images.cpu())
            given = {name: part.contiguous().numpy() for name, part in asked.items()}
            (raw,) = self.session.run([self.codec.output], given, options)
            found = np.asarray(raw, dtype=np.float32)
            if found.ndim < 2 or len(found) != len(images):
                raise ValueError(f"its output for {len(images)} images has the shape {found.shape}")
            return found
        except Exception as error:  # onnxruntime's types, and unexpected outputs
            if options.terminate:
                reason = f"did not process {len(images)} images within {RUN_SECONDS:g} seconds"
            else:
                reason = f"failed: {' '.join(str(error).split())[:300]}"
            raise ExportError(f"{self.path} {reason}; use smaller batches, or export the run again") from None
        finally:
            late.cancel()


class ProgramPredictor(Predictor):
    """A predictor of a torch.export package; opening one runs its code, so it has to be trusted.

    Args:
        device: device to run on; packages run on the CPU, where they were exported.
        trust: whether the file may be opened.
    """

    def __init__(self, path: str | Path, *, device: str | torch.device = "cpu", trust: bool = False) -> None:
        bundle = read_program_bundle(Path(path))
        if not trust:
            raise ExportError(
                f"{path} can execute arbitrary code when opened, like any torch.export package. Use the .onnx file "
                "of the same export, which is only data; or, if you trust the file, add --trust (trust=True)"
            )
        if torch.device(device).type != "cpu":
            raise ExportError(f"device={device}: a torch.export package of saccade runs on the CPU; remove it")
        super().__init__(Path(path).name, "program", bundle=bundle)
        self.program = torch.export.load(str(path)).module()
        self._lock = threading.Lock()

    def outputs(self, images: Tensor) -> np.ndarray:
        """Return raw outputs for images."""
        with self._lock, torch.inference_mode():
            return self.program(*self.codec.unpack(images).values()).float().numpy()


def open_predictor(target: str | Path, *, device: str = "cpu", kernels: str = "auto", trust: bool = False) -> Predictor:
    """Open a predictor.

    Args:
        target: run folder, `model.safetensors`, exported `.onnx` or `.pt2` file, name of a timm model with pretrained
            weights, or NAME@FILE.
        device: cpu, cuda, cuda:1, ...
        kernels: "auto", "off" or names of `saccade kernels`; exported files have none.
        trust: allow `.pt2` files, which can run arbitrary code.
    """
    path = Path(target).expanduser()
    if path.suffix.lower() in (".onnx", ".pt2") and not path.is_dir():
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; `saccade export RUN` writes one")
        if kernels not in ("auto", "off"):
            raise ExportError(
                f"kernels={kernels!r} has no effect: {path.name} is an exported file, which runs without kernels; "
                "remove it"
            )
        return (
            OnnxPredictor(path, device=device)
            if path.suffix.lower() == ".onnx"
            else ProgramPredictor(path, device=device, trust=trust)
        )
    opened = find_target(target, allowed="a run directory, a .onnx file that `saccade export` wrote")
    return TorchPredictor(open_model(opened, device=device), kernels=kernels)


def plugin_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of plug-ins attached to a model."""
    return tuple(type(handle.plugin).__name__ for handle in attached(model))


def _providers(runtime: Any, device: str) -> list[Any]:
    kind, _, number = str(device).partition(":")
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    have = runtime.get_available_providers()
    if kind != "cuda" or "CUDAExecutionProvider" not in have:
        raise ExportError(
            f"device={device}: this onnxruntime supports {', '.join(have)}. Use cpu, or install onnxruntime-gpu "
            "instead for cuda"
        )
    return [("CUDAExecutionProvider", {"device_id": int(number or 0)}), "CPUExecutionProvider"]


@cache
def _limit_memory(runtime: Any) -> bool:
    """Limit the memory of this process' ONNX graphs; return whether that is supported."""
    with suppress(Exception):  # not supported by this version
        about = runtime.OrtMemoryInfo(
            "Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT
        )
        limit = runtime.OrtArenaCfg({"max_mem": int(MEMORY_SHARE * physical_memory())})
        runtime.create_and_register_allocator(about, limit)
        return True
    return False
