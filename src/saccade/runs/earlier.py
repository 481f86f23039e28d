"""Compatibility with files of weights of earlier versions, which lack some model options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..models._constructors import constructor_options
from ..models._identify import resolve_name
from ..settings import read_yaml, short
from ..settings.named import split_options
from ..support.files import read_small
from .metadata import takes
from .weights import SOURCES

SETTINGS, MAX_SETTINGS_BYTES = "config.yaml", 2**20  # the run's settings, beside its weights; most bytes
LOST = {  # by prefix of the model's name
    "sot_": ("alpha", "centring", "divisor", "epn_axis", "normalization", "num_iter", "num_sv", "positive", "start"),
}


def restore_options(file: Path, about: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Add missing options from the run's settings to a file's metadata; return it and a warning.

    Only files of earlier versions lack any. Restored options are checked like those of the file.
    """
    about = _with_head_dim(about)
    model = about.get("model")
    if about.get("version") is not None or not isinstance(model, dict):
        return dict(about), None
    try:
        name = resolve_name(str(model.get("name")))
    except ValueError:  # not a timm model, without options
        return dict(about), None
    old = f"{file} was written by an earlier version of saccade, which did not store model options in such files"
    settings = _settings(file.parent / SETTINGS)
    if settings is None or settings.get("name") not in (name, model.get("name")):
        options = next((", ".join(names) for start, names in LOST.items() if name.startswith(start)), None)
        warning = (
            f"{old}. If this {name} was trained with any of {options}, its predictions are wrong: put the run's "
            f"{SETTINGS} next to the file, or train it again"
        )
        return dict(about), None if options is None else warning
    kept, given = model.get("options"), settings.get("options")
    if not isinstance(kept, dict) or not isinstance(given, dict):
        return dict(about), None
    lost = {option: value for option, value in given.items() if option not in kept and option not in SOURCES}
    lost = {option: value for option, value in lost.items() if value is not None}  # timm drops null
    if not lost:
        return dict(about), None
    allowed = constructor_options(name)
    restored = {option: value for option, value in lost.items() if option in allowed and takes(value, allowed[option])}
    unrestored = _written(lost.keys() - restored.keys(), lost)
    notes = [old]
    if restored:
        notes.append(
            f"{_written(restored, lost)} was restored from {file.parent / SETTINGS}, so predictions differ from those "
            f"of earlier versions. saccade train --resume {file.parent} rewrites the file with all options"
        )
    if unrestored:
        notes.append(f"{unrestored} cannot be restored, so the predictions are not those of the trained model")
    return {**about, "model": {**model, "options": {**kept, **restored}}}, ". ".join(notes)


def _with_head_dim(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the head_dim of second-order heads, which the first version derived from the token width."""
    model = about.get("model")
    plugins = model.get("plugins") if isinstance(model, dict) else None
    if "task" in about or not isinstance(model, dict) or not isinstance(plugins, list):
        return about
    return {**about, "model": {**model, "plugins": [_as_before(text) for text in plugins]}}


def _as_before(text: Any) -> Any:
    name, _, options = text.partition(":") if isinstance(text, str) else ("", "", "")
    if name.strip() != "second_order" or "head_dim" in [
        one.partition("=")[0].strip() for one in split_options(options)
    ]:
        return text
    return f"{text}{',' if options.strip() else ':' if ':' not in text else ''}head_dim=width"


def _settings(file: Path) -> Mapping[str, Any] | None:
    """Return the model settings of a run; None if they cannot be read."""
    try:
        model = read_yaml(read_small(file, most=MAX_SETTINGS_BYTES).decode(), source=str(file)).get("model")
    except (OSError, ValueError):
        return None
    return model if isinstance(model, dict) else None


def _written(names: Any, options: Mapping[str, Any]) -> str:
    return ", ".join(f"{short(str(name))}={short(repr(options[name]))}" for name in sorted(names, key=str))
