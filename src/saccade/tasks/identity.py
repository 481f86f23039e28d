"""What kind of model a folder or a name of Hugging Face is: as its `config.json` says, else as its name does."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support.files import read_record
from .hosting import PREFIX

CONFIG, LONGEST = "config.json", 100  # characters of a kind or a name
# Kinds that names speak of, the longer before those that they contain.
SPOKEN = (
    "xlm-roberta", "openai-gpt", "distilbert", "camembert", "roberta", "deberta", "mobilebert", "albert", "electra",
    "xlnet", "gpt2", "gpt", "bert", "vilt",
)  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """What a model is called."""

    kind: str  # such as "bert", "roberta", "gpt2"; empty where nothing tells it
    names: tuple[str, ...]  # of its folder, and of the model it was made from where the configuration tells
    known: bool  # whether the configuration was read; else the kind is a guess by the name

    @property
    def texts(self) -> tuple[str, ...]:
        """What the patterns of a recipe's variants are held against: kind and name, and the name alone."""
        return (*(f"{self.kind}/{name}" for name in self.names), *self.names)


def identify(model: str) -> Identity:
    """Return what a folder or name is; how its path is spelled does not matter."""
    name = model.removeprefix(PREFIX)
    own = Path(os.path.abspath(Path(name).expanduser())).name.lower()
    config = _config(name)
    kind = config.get("model_type")
    if isinstance(kind, str) and 0 < len(kind) <= LONGEST:
        before = config.get("_name_or_path")
        made_from = Path(before).name.lower() if isinstance(before, str) and len(before) <= 10 * LONGEST else ""
        return Identity(kind.lower(), tuple(dict.fromkeys(text for text in (own, made_from) if text)), True)
    return Identity(next((kind for kind in SPOKEN if kind in own), ""), (own,), False)


def _config(name: str) -> dict[str, Any]:
    """Return a model's configuration, from its folder or the hub's cache on this machine; empty if neither has it."""
    file = Path(name).expanduser() / CONFIG
    if file.is_file() or Path(name).expanduser().is_dir():
        return read_record(file)
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, CONFIG)
    except (ImportError, ValueError, OSError):  # what is no name on the hub is a ValueError
        return {}
    return read_record(Path(found)) if isinstance(found, str) else {}
