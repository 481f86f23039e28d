"""What holds of every file: its length, no circles of imports, lazy ones counted, and no task where all are served."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "saccade"
LONGEST = 350  # lines
TASKLESS = ("training", "comparison", "deployment", "data", "commands")  # folders that speak to the contract alone


def modules():
    """Return every file by its dotted name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("saccade", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name, path, known):
    """Yield the modules that a file imports, wherever in it."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            stem = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            stem = stem if node.level else node.module or ""
            for alias in node.names:
                inner = f"{stem}.{alias.name}"
                if inner in known or stem in known:
                    yield inner if inner in known else stem
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def test_files_import_each_other_in_no_circle():
    known = modules()
    files = {name: path for name, path in known.items() if path.name != "__init__.py"}
    graph = {name: set(imported(name, path, known)) & files.keys() - {name} for name, path in files.items()}
    circles = []
    for start in graph:
        seen, todo = set(), list(graph[start])
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += graph[here]
        circles += [start] if start in seen else []
    assert circles == []


def test_no_file_is_longer_than_can_be_read_in_one_sitting():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert len(lengths) > 200
    assert {str(path.relative_to(SOURCE)): length for path, length in lengths.items() if length > LONGEST} == {}


def test_what_serves_every_task_names_nothing_of_one():
    places = [SOURCE / "runs" / "run.py", *(path for folder in TASKLESS for path in (SOURCE / folder).rglob("*"))]
    told = [path for path in places if path.suffix in (".py", ".js", ".html", ".css")]
    assert len(told) > 100
    found = [
        f"{path.relative_to(SOURCE)}: {word}"
        for path in told
        for word in re.findall(r"top1|argmax|Classify", path.read_text(encoding="utf-8"))
    ]
    assert found == []
