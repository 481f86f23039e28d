"""C sources beside this file, which the user's compiler translates when they are first needed, for eager work on a CPU.

Where there is no compiler PyTorch's own operators do the work, slower; results differ by rounding.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..files import cache_folder, check_owner
from .switch import on

HEADERS = tuple(sorted(Path(__file__).parent.glob("native*.h")))
FAST = ("-O3", "-funroll-loops", "-fno-math-errno", "-fno-trapping-math")
FLAGS = ("-std=gnu99", *FAST, "-fno-strict-aliasing", "-shared", "-fPIC")
SECONDS = 120  # for the compiler, before it is given up
FAILURES = (OSError, RuntimeError, ValueError, subprocess.SubprocessError)  # RuntimeError: no home folder


def fits(*tensors: Tensor) -> bool:
    """Say whether code takes tensors: it needs their memory, which a tracer does not have, and knows no tangents."""
    return (
        on("native")
        and all(type(x) in (Tensor, nn.Parameter) and x.is_cpu and x.dtype == torch.float32 for x in tensors)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and _get_current_dispatch_mode() is None
        and forward_ad._current_level < 0
        and not any(x.is_neg() for x in tensors)  # one that is read with its sign turned
    )


@dataclass(frozen=True)
class Function:
    """A function of a C source, whose first arguments are those of `spread`.

    Args:
        source: the file.
        name: of the function.
        types: of its other arguments.
    """

    source: Path
    name: str
    types: tuple[Any, ...]

    @property
    def library(self) -> ctypes.CDLL | None:
        """What it is in, compiled by now; None where that cannot be."""
        return library(self.source, self.name, *self.types)

    def __call__(self, *args: Tensor | float | None) -> int:
        """Call it; tensors, whose memory is to lie as it reads them, stay until it is done."""
        given = (x.data_ptr() if isinstance(x, Tensor) else x for x in args)
        return getattr(self.library, self.name)(*spread(), *given)


@functools.cache
def library(source: Path, name: str, *types: Any) -> ctypes.CDLL | None:
    """Return a source's library with the types of a function's arguments set, or None where it cannot be compiled.

    The function's first arguments are those of `spread`, before these.
    """
    try:
        loaded = ctypes.CDLL(str(built(source)))
    except FAILURES:
        return None
    getattr(loaded, name).argtypes = (ctypes.c_void_p, ctypes.c_int, *types)
    return loaded


def spread() -> tuple[int | None, int]:
    """Return the address of what starts threads, and how many; those of PyTorch's operators, which wait meanwhile."""
    return _parallel(), torch.get_num_threads()


@functools.cache
def _parallel() -> int | None:
    name = {"Darwin": "libtorch_cpu.dylib"}.get(platform.system(), "libtorch_cpu.so")
    try:
        found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name)).GOMP_parallel
    except (OSError, AttributeError):  # it has another library for threads: one works alone
        return None
    return ctypes.cast(found, ctypes.c_void_p).value


def built(source: Path) -> Path:
    """Return the library for a source, this compiler and processor, compiled if it is not in the cache yet."""
    command, flags = compiler(), [*FLAGS, _native_flag()]
    texts = [file.read_text("utf-8") for file in (source, *HEADERS)]
    parts = (*texts, *command, version(command), *flags, _processor())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    target = cache_folder() / f"{source.stem}-{key}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{source.stem}-") as folder:
            fresh = Path(folder) / "fresh.so"
            _run([*command, *flags, f"-I{Path(__file__).parent}", "-o", str(fresh), str(source), "-lm"])
            fresh.chmod(0o700)
            os.replace(fresh, target)  # another process that did the same has made the same file
    check_owner(target)
    return target


def compiler() -> list[str]:
    """Return the command that compiles."""
    given = shlex.split(os.environ.get("CC", ""))
    if given:
        return given
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if found is None:
        raise OSError("no C compiler was found; install gcc or clang, or name one in the environment variable CC")
    return [found]


def version(command: list[str]) -> str:
    """Return what a compiler says of itself."""
    return _run([*command, "--version"])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    if done.returncode:
        raise OSError(f"`{shlex.join(command)}` failed with status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _native_flag() -> str:
    return "-march=native" if platform.machine().lower() in ("x86_64", "amd64", "i686") else "-mcpu=native"


def _processor() -> str:
    """Describe the processor, since a home folder can be shared between machines."""
    lines = [platform.system(), platform.machine(), platform.processor()]
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return "\n".join(lines)
    names = ("model name", "flags", "Features", "CPU part", "CPU variant")
    return "\n".join([*lines, *sorted({line for line in cpuinfo if line.startswith(names)})])
