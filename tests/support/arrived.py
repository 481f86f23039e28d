"""Whether what a command gave stands in the settings of the run that it made."""

import re
from pathlib import Path
from typing import Any

from saccade.settings import parse_settings
from saccade.training.recipes import SHORT_FLAGS

PLAIN = ("epochs", "batch_size", "lr", "img_size", "device", "kernels", "group", "checkpoint")


def lost(config: dict[str, Any], words: list[str]) -> list[str]:
    """Return what a command gave and its run's settings do not have; a setting given twice counts as last given."""
    pairs = list(zip(words, [*words[1:], ""], strict=True))
    given = parse_settings([value for flag, value in pairs if flag == "--set"])
    for flag, value in pairs:
        short = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and short in PLAIN:
            given.setdefault(SHORT_FLAGS[short], value)
        if flag == "--recipe":
            given["recipe"] = value
    missing = []
    for name, value in given.items():
        found = config
        for part in name.split("."):
            found = found[part]
        if not same(found, value):
            missing.append(f"{name}: {value} was given, {found} is there")
    for flag, value in pairs:
        if flag == "--plugin" and value not in config["model"]["plugins"]:
            missing.append(f"--plugin {value}: there are {config['model']['plugins']}")
        asked = set(value.partition(":")[2].split(","))
        if flag == "--task" and not asked <= set(re.split("[:,]", f":{config['task']}")):
            missing.append(f"--task {value}: there is {config['task']}")
        if flag == "--model" and Path(value).name not in config["model"]["name"]:
            missing.append(f"--model {value}: there is {config['model']['name']}")
    return missing


def same(found: Any, given: Any) -> bool:
    """Whether a setting is what was given, perhaps filled in further."""
    if isinstance(given, dict) and isinstance(found, dict):
        return all(name in found and same(found[name], value) for name, value in given.items())
    if isinstance(given, str) and re.match(r"[a-z_]+:\w+=", given):  # a head with some of its options
        return set(re.split("[:,]", given)) <= set(re.split("[:,]", str(found)))
    try:
        return float(found) == float(given)
    except (TypeError, ValueError):
        return str(found) == str(given) or str(found).endswith(f"/{given}")
