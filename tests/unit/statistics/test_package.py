"""The package stands by itself: it imports neither PyTorch nor anything else of saccade."""

import ast
import subprocess
import sys
from pathlib import Path

from saccade import statistics

HOME = Path(statistics.__file__).parent
LONGEST = 350  # lines


def test_importing_it_brings_no_other_part_of_saccade_and_no_pytorch():
    names = [f"saccade.statistics.{path.stem}" for path in HOME.glob("*.py") if path.stem != "__init__"]
    code = (
        "import importlib, sys\nimport saccade.statistics\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    there = done.stdout.split()
    assert {"saccade.statistics.spread", "numpy", "scipy"} <= set(there)
    assert {"torch", "timm", "torchvision", "pandas", "sklearn"} & set(there) == set()
    ours = {name for name in there if name.partition(".")[0] == "saccade"}
    root = {"saccade", "saccade.support", "saccade.support.moved"}  # what `import saccade` needs to find earlier names
    assert ours == {*root, "saccade.statistics", *names}


def test_no_function_imports_more_when_it_is_called():
    known = {*sys.stdlib_module_names, "numpy", "scipy"}
    for path in HOME.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (node.level == 0 and node.module.partition(".")[0] in known), path
            elif isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= known, path


def test_a_file_is_one_idea():
    assert {path.name for path in HOME.glob("*.py") if len(path.read_text().splitlines()) > LONGEST} == set()


def test_every_public_name_is_there():
    assert [name for name in statistics.__all__ if not hasattr(statistics, name)] == []
