"""What the sources call things: every identifier, text, setting and flag, to hold the documents against."""

import ast
import importlib
import pkgutil
from argparse import ArgumentParser
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import saccade
from saccade.cli import VERBS
from saccade.settings import TrainConfig, flatten
from support.docs import ROOT

SETTINGS = flatten(TrainConfig())
GROUPS = {name.partition(".")[0] for name in SETTINGS if "." in name}


@cache
def modules() -> dict[str, Any]:
    """Return every module of the package by its name."""
    found = {"saccade": saccade}
    for one in pkgutil.walk_packages(saccade.__path__, "saccade."):
        if one.name not in ("saccade.layers.depthwise_kernel", "saccade.kernels.triton.depthwise"):  # needs Triton
            found[one.name] = import_module(one.name)
    return found


@cache
def words() -> frozenset[str]:
    """Return all identifiers and short texts of the sources, the benchmarks and their pages."""
    found: set[str] = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for field in ("id", "attr", "arg", "name"):
                if isinstance(value := getattr(node, field, None), str):
                    found.add(value)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
                found.add(node.value)
                found.update(node.value.replace("{", " ").replace("}", " ").replace(".", " ").split())
    return frozenset(found)


@cache
def texts() -> str:
    """Return the sources as one text, pages' scripts and recipes included."""
    kinds = ("*.py", "*.js", "*.html", "*.yaml")
    files = [path for kind in kinds for path in (ROOT / "src").rglob(kind)]
    files += (ROOT / "benchmarks").rglob("*.py")
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def parsers() -> dict[str, ArgumentParser]:
    """Return the parser of each verb."""
    found = {}
    for verb in VERBS:
        found[verb] = ArgumentParser(prog=verb, allow_abbrev=False, exit_on_error=False)
        import_module(f"saccade.commands.{verb}").flags(found[verb])
    return found


@cache
def flags() -> frozenset[str]:
    """Return the flags of every verb, and of the benchmarks."""
    ours = {flag for parser in parsers().values() for flag in parser._option_string_actions}
    return frozenset(ours | {word for word in words() if word.startswith("--")})


def resolve(path: str) -> Any:
    """Return what a dotted name stands for in the package, or in one that it builds on; raise LookupError if nothing.

    The first part is a package, or a module, class or function of ours that is called so.
    """
    first, *rest = path.split(".")
    starts = [module for name, module in modules().items() if name == first or name.endswith(f".{first}")]
    starts += [vars(module)[first] for module in modules().values() if first in vars(module)]
    if not starts:
        try:
            starts = [importlib.import_module(first)]
        except ImportError:
            raise LookupError(path) from None
    for start in starts:
        found = start
        for part in rest:
            if not hasattr(found, part) and getattr(found, "__path__", None) is not None:
                try:
                    import_module(f"{found.__name__}.{part}")
                except ImportError:
                    break
            if not hasattr(found, part):
                break
            found = getattr(found, part)
        else:
            return found
    raise LookupError(path)


def file_named(name: str) -> bool:
    """Whether a file of the repository is called so, or a part of the sources writes or reads one."""
    return name in texts() or any(Path(ROOT / folder).rglob(name) for folder in ("src", "tests", "benchmarks"))
