"""Save and load Hugging Face models with plug-ins by `save_pretrained` and `from_pretrained`."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from ..settings.registry import option_defaults, option_hints
from ..support.files import read_record
from .attach import CHANGED, attach, attached
from .registry import PLUGINS

RECORD = "saccade_plugins"  # in config.json
OPTION_TYPES = (str, int, float, bool, type(None))
MAX_PLUGINS = 32  # most plug-ins of a model
SAFE = {"local_files_only": True, "trust_remote_code": False}  # otherwise transformers asks whether to run remote code


def from_pretrained(folder: str | Path, **options: Any) -> nn.Module:
    """Load a Hugging Face model saved by `save_pretrained`, with its plug-ins, in evaluation mode.

    Args:
        folder: folder with `config.json` and safetensors weights; models without plug-ins are loaded by transformers.
        options: options of transformers' `from_pretrained`, for models without plug-ins.
    """
    transformers = import_transformers()
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path} has no config.json; give a folder that model.save_pretrained wrote")
    config = transformers.AutoConfig.from_pretrained(path, **SAFE)
    named = getattr(config, "architectures", None)
    name = str(named[0]) if isinstance(named, list) and named else ""
    made: Any = getattr(transformers, name, None)
    known = isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)
    if not known:
        raise ValueError(f"{path / 'config.json'} names the architecture {name!r}, which transformers does not have")
    record = getattr(config, RECORD, None)
    if not record:
        return made.from_pretrained(path, **SAFE, **{"use_safetensors": True, **options}).eval()
    plugins = _read(record, path)
    delattr(config, RECORD)
    model: nn.Module = made(config)
    for plugin in plugins:
        attach(model, plugin)
    _fill(model, path)
    return model.eval()


def recorded_plugins(path: Path) -> list[str]:
    """Return the plug-ins in a folder's configuration, as in settings; empty if it cannot be read."""
    record = read_record(path / "config.json").get(RECORD)
    entries = record[:MAX_PLUGINS] if isinstance(record, list) else []
    pairs = [(entry.get("name"), entry.get("options")) for entry in entries if isinstance(entry, dict)]
    return [_write(name, options) for name, options in pairs if isinstance(name, str) and isinstance(options, dict)]


def _write(name: str, options: dict[str, Any]) -> str:
    """Return a plug-in as text with its non-default options, except the number of classes."""
    default = option_defaults(PLUGINS[name]) if name in PLUGINS else {}
    default |= {"num_classes": options.get("num_classes")}
    given = {key: value for key, value in options.items() if value is not None and value != default.get(key)}
    texts = [
        f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for key, value in given.items()
    ]
    return f"{name}:{','.join(texts)}" if texts else name


def record_plugins(model: nn.Module) -> None:
    """Record a Hugging Face model's plug-ins in its configuration."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "save_pretrained"):
        return
    record = [describe_plugin(handle.plugin) for handle in attached(model)]
    if record and all(record):
        setattr(config, RECORD, record)
    elif hasattr(config, RECORD):
        delattr(config, RECORD)


def import_transformers() -> Any:
    """Import transformers, or raise an error that says how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"this needs {error.name}; install it with pip install 'saccade[hf]'") from None
    return transformers


def describe_plugin(plugin: Any) -> dict[str, Any] | None:
    """Return a plug-in's name and options as JSON values; None if that is not possible."""
    name = next((name for name, made in PLUGINS.items() if made is type(plugin)), None)
    if name is None:
        return None
    options = dict(getattr(plugin, "options", {}))
    for key in option_hints(type(plugin)):
        if hasattr(plugin, key):  # options passed on are in `options`
            value = getattr(plugin, key)
            options[key] = list(value) if isinstance(value, tuple) else value
    plain = all(isinstance(value, OPTION_TYPES) or _is_list(value) for value in options.values())
    return {"name": name, "options": options} if plain else None


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, OPTION_TYPES) for part in value)


def _read(record: Any, path: Path) -> list[Any]:
    """Read the plug-ins of a configuration, which may be untrusted."""
    wrong = ValueError(f"{path / 'config.json'}: {RECORD} is not a list of plug-ins with options; save the model again")
    if not isinstance(record, list) or len(record) > MAX_PLUGINS:
        raise wrong
    found = []
    for entry in record:
        if not isinstance(entry, dict) or set(entry) != {"name", "options"} or not isinstance(entry["options"], dict):
            raise wrong
        if not all(isinstance(value, OPTION_TYPES) or _is_list(value) for value in entry["options"].values()):
            raise wrong
        try:
            made = PLUGINS.find(str(entry["name"]))
            if not hasattr(made, "install"):
                raise ValueError("it is not a plug-in that can be attached to a model")
            found.append(made(**entry["options"]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path / 'config.json'}: the plug-in {entry['name']!r}: {error}") from None
    return found


def read_folder(path: Path) -> dict[str, Any]:
    """Read a folder's safetensors weights, in one file or several."""
    from safetensors.torch import load_file

    index = path / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    weights: dict[str, Any] = {}
    for name in names:
        if Path(name).name != name or not (path / name).is_file():
            raise FileNotFoundError(f"{path} has no {name}; save the model again with save_pretrained, as safetensors")
        weights |= load_file(path / name)
    return weights


def _fill(model: nn.Module, path: Path) -> None:
    weights = read_folder(path)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    missing = [key for key in missing if key not in tied]
    if missing or unexpected:
        raise ValueError(
            f"the weights of {path} do not fit its configuration: {', '.join([*missing, *unexpected][:5])} are missing "
            "or unknown; save the model again"
        )
    if hasattr(model, "tie_weights"):
        model.tie_weights()  # type: ignore[operator]


CHANGED.append(record_plugins)
