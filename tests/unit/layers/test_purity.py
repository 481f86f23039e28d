"""Ideas are plain PyTorch: nothing in layers, models, plugins or tasks asks a device, a compiler or a memory layout."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import saccade

ROOT = Path(saccade.__file__).parent
FOLDERS = ("layers", "models", "plugins", "tasks")
MODULES = ("saccade.kernels", "ctypes", "triton", "torch.library")
QUESTIONS = {
    "is_compiling", "is_dynamo_compiling", "is_cuda", "is_cpu", "data_ptr", "is_grad_enabled", "is_autocast_enabled",
}  # fmt: skip
WRITES = {
    "append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "discard", "clear",
    "add", "update", "setdefault", "__setitem__", "__delitem__",
}  # fmt: skip
CONTAINERS = {"dict", "list", "set", "defaultdict", "Counter", "OrderedDict", "deque", "WeakKeyDictionary"}
MOST_LINES, MOST_LINES_IN_ALL = 200, 3000  # of a file in layers/, and of the folder

KEEP = "detection's suppression that a CUDA graph can capture: a capability, and an operator beside its reference"
EXCEPTIONS = {
    ("layers/numerics.py", "is_autocast_enabled"): "precision guards have to know what autocast does to products",
    ("layers/svpn.py", "PowerByEigenvectors"): "exact svPN: a gradient that is finite at equal values is the paper's",
    ("layers/svpn_products.py", "SquareRootByProducts"): "the same for graphs that have no eigendecomposition",
    ("models/_backbone.py", "is_grad_enabled"): "a checkpoint keeps the generators' states, for which a GPU is waited",
    ("tasks/detection/keep_triton.py", "torch.library"): KEEP,
    ("tasks/detection/keep_triton.py", "triton"): KEEP,
    ("tasks/detection/keep_triton.py", "is_cuda"): KEEP,
    ("tasks/detection/keep_triton.py", "global tl"): KEEP,
    ("tasks/detection/anchors.py", "is_compiling"): (
        "anchors are kept so that a captured step copies none from the host; a compiled graph may not fill that store"
    ),
    ("tasks/detection/roi.py", "is_cuda"): "a fixed number of rows costs a CPU most of its time; fewer make a GPU wait",
    (
        "tasks/detection/masks.py",
        "is_cuda",
    ): "one mask after the other suits a CPU; a GPU would wait for each",
    ("tasks/metric.py", "is_cuda"): "answers leave a GPU while the next batch runs, which takes an event of its stream",
}


def findings(tree: ast.Module, package: str) -> Iterator[tuple[str, int]]:
    """Return what is not pure in a module, each with its line."""
    stored = {name: node for node in tree.body for name in _names(node) if _holds(node)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for name in _imported(node, package):
            yield from ((module, line) for module in MODULES if name == module or name.startswith(f"{module}."))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in MODULES:
            yield ast.unparse(node), line
        asked = getattr(node, "attr", getattr(node, "id", getattr(node, "value", None)))
        if isinstance(node, ast.Attribute | ast.Name | ast.Constant) and isinstance(asked, str) and asked in QUESTIONS:
            yield asked, line
        if isinstance(node, ast.Global):
            yield from ((f"global {name}", line) for name in node.names)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Function") for base in node.bases):
            yield node.name, line
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from ((f"state {name}", at) for name, at in _written(node) if name in stored)


def _imported(node: ast.AST, package: str) -> list[str]:
    """Return the full names of modules, and of what may be one, that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = package.split(".")[: -(node.level - 1) or None] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        return [f"{module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "find_spec"):
        return [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return []


def _names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _holds(node: ast.stmt) -> bool:
    """Whether a statement makes something that can be written into."""
    value = getattr(node, "value", None)
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).split(".")[-1] in CONTAINERS
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def _written(function: ast.AST) -> Iterator[tuple[str, int]]:
    """Return the names that a function writes into and does not make itself."""
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in ast.walk(function):
        held = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            held = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
            held = node.func.value
        if isinstance(held, ast.Name) and held.id not in own:
            yield held.id, node.lineno


def sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def found_in(path: Path) -> dict[str, int]:
    package = ".".join(["saccade", *path.relative_to(ROOT).parts[:-1]])
    return dict(findings(ast.parse(path.read_text()), package))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_an_idea_is_plain_pytorch(path: Path) -> None:
    file = path.relative_to(ROOT).as_posix()
    wrong = [f"{file}:{line} {what}" for what, line in found_in(path).items() if (file, what) not in EXCEPTIONS]
    assert not wrong, "move it to kernels/, or give its reason in EXCEPTIONS"


@pytest.mark.parametrize(("file", "what"), EXCEPTIONS)
def test_every_exception_is_one(file: str, what: str) -> None:
    assert what in found_in(ROOT / file)


def test_files_of_layers_are_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "layers").rglob("*.py")}
    assert not {name: length for name, length in lengths.items() if length > MOST_LINES}
    assert sum(lengths.values()) <= MOST_LINES_IN_ALL


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("from ..kernels import apply", "saccade.kernels"),
        ("from .. import kernels", "saccade.kernels"),
        ("from saccade.kernels.ops import gelu", "saccade.kernels"),
        ("import ctypes", "ctypes"),
        ("def f():\n    import triton.language as tl", "triton"),
        ("import importlib\nimportlib.import_module('triton')", "triton"),
        ("from torch.library import custom_op", "torch.library"),
        ("from torch import library", "torch.library"),
        ("import torch\n@torch.library.custom_op\ndef f(): ...", "torch.library"),
        ("def f(x):\n    return x.is_cuda", "is_cuda"),
        ("def f(x):\n    return getattr(x, 'data_ptr')()", "data_ptr"),
        ("from torch import is_grad_enabled\nx = is_grad_enabled()", "is_grad_enabled"),
        ("import torch\nif torch.compiler.is_compiling(): ...", "is_compiling"),
        ("x = None\ndef f():\n    global x\n    x = 1", "global x"),
        ("KEPT = {}\ndef f(x):\n    KEPT[x] = 1", "state KEPT"),
        ("KEPT: list[int] = []\nclass A:\n    def f(self):\n        KEPT.append(1)", "state KEPT"),
        ("from collections import deque\nKEPT = deque()\nf = lambda x: KEPT.append(x)", "state KEPT"),
        ("KEPT = set()\ndef f(x):\n    KEPT.discard(x)", "state KEPT"),
        ("KEPT = {}\ndef f(x):\n    del KEPT[x]", "state KEPT"),
        ("import torch\nclass Fast(torch.autograd.Function): ...", "Fast"),
    ],
)
def test_what_is_not_pure_is_found(source: str, what: str) -> None:
    assert what in dict(findings(ast.parse(source), "saccade.layers"))


@pytest.mark.parametrize(
    "source",
    [
        "from torch import Tensor, nn\nfrom .position import resize_grid",
        "NAMES = ['a']\ndef f(x):\n    return NAMES[0]",
        "def f(kept):\n    kept.append(1)\n    own = {}\n    own['a'] = 1",
        '"""Whether is_cuda."""',
        "KNOWN = {}\nKNOWN['a'] = 1",
    ],
)
def test_what_is_pure_is_let_be(source: str) -> None:
    assert not dict(findings(ast.parse(source), "saccade.layers"))
