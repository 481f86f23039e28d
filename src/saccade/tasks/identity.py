"""Identify the type of a Hugging Face model by its `config.json`, or else by name."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support.files import read_record
from .hosts import PREFIX

CONFIG, LONGEST = "config.json", 100  # most characters of a type or name
# Types recognised in names, longer ones before those that they contain.
SPOKEN = (
    "xlm-roberta", "openai-gpt", "distilbert", "modernbert", "camembert", "roberta", "deberta", "mobilebert", "albert",
    "electra", "xlnet", "gpt2", "gpt", "bert", "vilt",
)  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """Type and names of a model."""

    kind: str  # such as "bert", "roberta", "gpt2"; empty if unknown
    names: tuple[str, ...]  # names of its folder, and of its base model, if known
    known: bool  # whether the type is from the configuration, not guessed by name

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts to match with patterns of recipe variants: type and name, and the name only."""
        return (*(f"{self.kind}/{name}" for name in self.names), *self.names)


def identify(model: str) -> Identity:
    """Identify a folder or name."""
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
    """Return a model's configuration from its folder or the local hub cache; empty if there is none."""
    file = Path(name).expanduser() / CONFIG
    if file.is_file() or Path(name).expanduser().is_dir():
        return read_record(file)
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, CONFIG)
    except (ImportError, ValueError, OSError):  # invalid hub names raise ValueError
        return {}
    return read_record(Path(found)) if isinstance(found, str) else {}
