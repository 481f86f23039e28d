"""Run an ONNX graph of a stranger: for a limited time, in limited memory, and what goes wrong is told."""

import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..files import physical_memory
from .bundle import ExportError

RUN_SECONDS = 120.0  # for one batch
MEMORY_SHARE = 0.5  # of the machine's


class LimitedSession:
    """A graph that onnxruntime answers.

    Args:
        runtime: onnxruntime.
        data: the graph.
        providers: what it runs on.
        path: what errors call it.
        output: name of what the graph answers with.
    """

    def __init__(self, runtime: Any, data: bytes, *, providers: list[Any], path: Path, output: str = "logits") -> None:
        self.runtime, self.path, self.output = runtime, path, output
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised
        if _limit_memory(runtime):
            options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            self.session = runtime.InferenceSession(data, options, providers=providers)
        except Exception as error:  # onnxruntime has a kind of its own for each failure
            raise ExportError(
                f"{path} cannot be opened by onnxruntime {runtime.__version__}: {str(error)[:300]}; export it again"
            ) from None

    def run(self, pictures: np.ndarray) -> np.ndarray:
        """Return the raw answers to pictures; may be called from many threads."""
        options = self.runtime.RunOptions()
        options.log_severity_level = 4
        late = threading.Timer(RUN_SECONDS, setattr, (options, "terminate", True))  # looked at between two operations
        late.daemon = True
        late.start()
        try:
            (raw,) = self.session.run([self.output], {"image": pictures}, options)
            found = np.asarray(raw, dtype=np.float32)
            if found.ndim < 2 or len(found) != len(pictures):
                raise ValueError(f"its answers to {len(pictures)} pictures have the shape {found.shape}")
            return found
        except Exception as error:  # onnxruntime's kinds, and what an odd output raises
            if options.terminate:
                told = f"did not answer {len(pictures)} pictures within {RUN_SECONDS:g} seconds"
            else:
                told = f"cannot answer: {' '.join(str(error).split())[:300]}"
            raise ExportError(f"{self.path} {told}; ask with smaller batches, or export the run again") from None
        finally:
            late.cancel()


@cache
def _limit_memory(runtime: Any) -> bool:
    """Let graphs of this process take a share of the memory at most; return whether they will."""
    with suppress(Exception):  # a version that cannot: graphs run as they would
        about = runtime.OrtMemoryInfo(
            "Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT
        )
        limit = runtime.OrtArenaCfg({"max_mem": int(MEMORY_SHARE * physical_memory())})
        runtime.create_and_register_allocator(about, limit)
        return True
    return False
