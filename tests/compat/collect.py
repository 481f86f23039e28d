"""What a version of saccade lets people type and import, as JSON: made of one version, later ones are held against it.

PYTHONPATH=OLD/src python tests/compat/collect.py OLD > tests/compat/names.json, with OLD a checkout of that version.
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import re
import sys
import typing
from pathlib import Path
from typing import Any

DOTTED = re.compile(r"\bsaccade(?:\.[A-Za-z]\w*)+")
IMPORT = re.compile(r"^from (saccade[\w.]*) import (.+)$", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
FILE = re.compile(r"\b(?:[a-z_]+/)*[a-z_]+\.py\b")


def lookup(path: str) -> Any:
    """Return what a dotted name stands for; LookupError if there is nothing."""
    found: Any = importlib.import_module("saccade")
    reached = "saccade"
    for part in path.split(".")[1:]:
        reached = f"{reached}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(reached)
            except ImportError:
                raise LookupError(path) from None
    return found


def documented(root: Path) -> set[str]:
    """Return the dotted names that packages export or documents name, in full or beside their file."""
    import saccade

    found = set()
    for module in pkgutil.walk_packages(saccade.__path__, "saccade."):
        if not re.search("triton|depthwise|__main__", module.name):
            home = importlib.import_module(module.name)
            found |= {f"{module.name}.{name}" for name in getattr(home, "__all__", ())}
    found |= {f"saccade.{name}" for name in saccade.__all__}
    pages = [*(root / "docs").glob("*.md"), root / "README.md", root / "CONTRIBUTING.md"]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    words = {word for text in texts for code in CODE.findall(text) for word in re.findall(r"[A-Za-z]\w+", code)}
    for text in texts:
        named = {name.rstrip(".") for name in DOTTED.findall(text)}
        for home, names in IMPORT.findall(text):
            named |= {f"{home}.{name.strip().partition(' as ')[0]}" for name in names.split(",")}
        for file in FILE.findall(text):
            for path in (root / "src" / "saccade").rglob(file.rpartition("/")[2]):
                inside = path.relative_to(root / "src").as_posix()
                if inside.endswith(f"/{file}") and not re.search("triton|depthwise|__main__", inside):
                    home = inside.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                    own = vars(importlib.import_module(home)).items()
                    here = {name for name, value in own if getattr(value, "__module__", None) == home}
                    named |= {f"{home}.{name}" for name in here & words}
        for name in named:
            try:
                lookup(name)
                found.add(name)
            except LookupError:
                continue  # a group of entry points, or of a type variable
    return {name for name in found if "._" not in name}


def shape(thing: Any) -> dict[str, list[str]]:
    """Return the arguments that a function or class takes, and what a class itself has."""
    if inspect.ismodule(thing) or not callable(thing):
        return {}
    try:
        taken = inspect.signature(thing).parameters.values()
    except (ValueError, TypeError):
        taken = ()
    found = {"takes": [one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]}
    if inspect.isclass(thing):
        own = {*vars(thing), *vars(thing).get("__annotations__", ())}
        found["has"] = sorted(name for name in own if not name.startswith("_"))
    return {kind: names for kind, names in found.items() if names}


def options(registry: Any) -> dict[str, list[str]]:
    """Return the options of all that is registered, by name."""
    option_hints = sys.modules[type(registry).__module__].option_hints  # wherever it is in that version
    found = {}
    for name, thing in registry.items():
        made = [one for one in (thing, getattr(thing, "Options", None)) if callable(one)]
        found[name] = sorted({option for one in made for option in option_hints(one)} - {"model", "task", "options"})
    return dict(sorted(found.items()))


def flags() -> dict[str, dict[str, Any]]:
    """Return the flags and positional arguments of each command, with the values they are limited to."""
    from saccade.cli import VERBS

    found: dict[str, dict[str, Any]] = {}
    for verb in VERBS:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        importlib.import_module(f"saccade.commands.{verb}").flags(parser)
        found[verb] = {
            flag: sorted(map(str, action.choices)) if action.choices else None
            for action in parser._actions
            for flag in (action.option_strings or [action.dest])
        }
    return found


def settings() -> dict[str, list[str] | None]:
    """Return every setting, with the words it is limited to."""
    from saccade.settings import TrainConfig

    def words(kind: Any) -> list[str]:
        if typing.get_origin(kind) is typing.Literal:
            return [str(word) for word in typing.get_args(kind)]
        return [word for one in typing.get_args(kind) for word in words(one)]

    found: dict[str, list[str] | None] = {}

    def walk(kind: Any, start: str) -> None:
        for name, hint in typing.get_type_hints(kind).items():
            if inspect.isclass(hint) and hint.__name__.endswith("Config"):
                walk(hint, f"{start}{name}.")
            else:
                found[f"{start}{name}"] = sorted(words(hint)) or None

    walk(TrainConfig, "")
    return found


def names() -> dict[str, Any]:
    """Return what is known by names of its own: recipes, families, models, plug-ins, tasks, heads, readers, views."""
    import saccade
    from saccade.data.reader import READERS
    from saccade.explanation.request import VIEWS
    from saccade.plugins.registry import PLUGINS
    from saccade.tasks import TASKS
    from saccade.tasks.detection.detector import HEADS as DETECTORS
    from saccade.tasks.segmentation.heads import HEADS

    families = Path(saccade.__file__).parent / "recipes" / "families"
    return {
        "recipes": sorted(saccade.list_recipes()),
        "families": sorted(path.stem for path in families.glob("*.yaml")),
        "models": sorted(saccade.list_backbones()),
        "plugins": options(PLUGINS),
        "tasks": options(TASKS),
        "heads": options(HEADS),
        "detectors": options(DETECTORS),
        "readers": sorted(READERS),
        "views": sorted(VIEWS),
    }


def main() -> None:
    """Print what the version at a path, which is the one imported, has."""
    root = Path(sys.argv[1]).resolve()
    python = {name: shape(lookup(name)) for name in sorted(documented(root))}
    found = {"flags": flags(), "settings": settings(), **names(), "python": python}
    lines = ["{"]
    for last, (group, values) in enumerate(found.items(), 1):
        comma = "," if last < len(found) else ""
        if isinstance(values, dict):
            rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
            lines.append(f" {json.dumps(group)}: {{\n{rows}\n }}{comma}")
        else:
            lines.append(f" {json.dumps(group)}: {json.dumps(values)}{comma}")
    print("\n".join([*lines, "}"]))


if __name__ == "__main__":
    main()
