"""Open timm models with pretrained weights, from the hub or a file; match classes by name."""

import socket
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import timm
from torch import nn

from ..data.spec import InputSpec
from ..data.split import abbreviate
from ..models import CheckpointError
from ..models._identify import resolve_name
from ..models._official import read_checkpoint
from ..runs.metadata import check_model, read_about
from ..settings import ConfigError, nearest, read_value
from ..settings.named import split_options
from .published import MISFITS, build_published, is_ours

PREFIX = "timm:"
WAIT = 5  # seconds for the hub to answer


def find_specification(target: str | Path) -> str | None:
    """Return the full specification of a model with weights, for `open_timm`; None for paths and unknown models.

    The format is "NAME" or "NAME:option=value,...", optionally with "@FILE" and the prefix "timm:". Existing paths take
    precedence; `vit_tiny` is short for `vit_tiny_patch16_224`, as in training.
    """
    text = str(target)
    if not text.startswith(PREFIX) and Path(text).expanduser().exists():
        return None
    given, at, file = text.removeprefix(PREFIX).partition("@")
    name, colon, options = given.partition(":")
    try:
        full = resolve_name(name)
        timm.get_pretrained_cfg(full)
    except (ValueError, RuntimeError):  # RuntimeError for an unknown tag, such as a file extension
        return None
    if at and not Path(file).expanduser().is_file():
        raise FileNotFoundError(f"{target}: no such file {file}")
    return f"{full}{colon}{options}{at}{file}"


def open_timm(target: str) -> tuple[nn.Module, InputSpec]:
    """Build a model with pretrained weights, in evaluation mode; no code in files is run.

    Args:
        target: "NAME", with weights from the hub or its cache, or "NAME@FILE": safetensors for timm models, also .pth
            and the published layout for saccade's. Options of the constructor follow the name, "NAME:option=value,...".
    """
    given, at, file = target.partition("@")
    name, _, texts = given.partition(":")
    if not timm.is_model(name.split(".")[0]):
        raise ConfigError(f"timm has no model {name!r}{nearest(name, timm.list_models())}")
    cfg = _describe_weights(name)
    if cfg is None:
        raise ConfigError(f"timm has no information on the weights of {name!r}; use a name from timm.list_pretrained()")
    options = _read_options(name, texts)
    path = Path(file).expanduser() if at else _fetch(name, cfg)
    if read_about(path):  # written by saccade, with its own classes and plug-ins
        raise CheckpointError(f"{path} records its own model; give it without {name}@")
    model: Any
    model, channels = (build_published if is_ours(name) else _build_timm)(name, options, path)
    data = timm.data.resolve_model_data_config(model)
    size = options.get("img_size", data["input_size"][-1])
    spec = InputSpec(
        outputs=tuple(words[0] for words in class_words(name, model.num_classes)),
        in_chans=channels,
        img_size=size,
        mean=list(data["mean"]),
        std=list(data["std"]),
        shorter=round(size / data["crop_pct"]),
    )
    return model.eval(), spec


def _describe_weights(name: str) -> Any:
    """Return timm's description of a model's weights, if any; refuse unknown tags."""
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError:
        model, _, tag = name.partition(".")
        known = ", ".join(timm.list_pretrained(f"{model}.*")[:5])
        raise ConfigError(
            f"{name}: timm has no weights {tag!r} for {model}{f', but {known}' if known else ''}; give one of these, "
            f"or {model}@FILE"
        ) from None


def _read_options(name: str, texts: str) -> dict[str, Any]:
    """Parse constructor options, "option=value,option=value"."""
    pairs = [part.partition("=") for part in split_options(texts)]
    options = {key.strip(): read_value(value) for key, _, value in pairs}
    if type(options.get("img_size", 0)) is not int:
        raise ConfigError(f"{name}:{texts}: img_size must be a whole number")
    try:
        return check_model({"name": name, "options": options}, resolve=resolve_name).options
    except ValueError as error:
        raise ConfigError(f"{name}:{texts}: {error}") from None


def _build_timm(name: str, options: Mapping[str, Any], path: Path) -> tuple[nn.Module, int]:
    """Build a timm model with the weights of a file; return it and its channels."""
    if path.suffix != ".safetensors":
        raise CheckpointError(
            f"{path} cannot be used as weights of {name}; give a .safetensors file, which cannot contain code: "
            "safetensors.torch.save_file(weights, FILE) writes one"
        )
    classes: Any = getattr(timm.get_pretrained_cfg(name), "num_classes", None)
    overlay: dict[str, Any] = {"state_dict": read_checkpoint(path)}
    try:
        model: Any = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    except MISFITS as error:
        detail = " ".join(str(error).split())[:300] or type(error).__name__
        raise CheckpointError(
            f"the weights in {path} do not fit timm's {name} with {classes} classes ({detail}); choose the model "
            "that they were made for"
        ) from None
    return model, timm.data.resolve_model_data_config(model)["input_size"][0]


def match_classes(wanted: Sequence[str], known: Sequence[Sequence[str]], *, teacher: str) -> list[int] | None:
    """Return the teacher's class for each of the data's, by name; None if they are identical.

    Args:
        known: names of each of the teacher's classes, the main one first.
        teacher: the teacher's name in errors.
    """
    shown = [words[0] for words in known]
    if list(wanted) == shown:
        return None
    places: dict[str, set[int]] = {}
    for place, words in enumerate(known):
        for word in words:
            places.setdefault(_plain(word), set()).add(place)
    found = {name: places.get(_plain(name), set()) for name in wanted}
    unknown = [name for name, place in found.items() if not place]
    several = [name for name, place in found.items() if len(place) > 1]
    if unknown or several:
        wrong = "does not know" if unknown else "has several classes called"
        raise ConfigError(
            f"the teacher {teacher} {wrong} {abbreviate(unknown or several)} (the dataset has {len(wanted)} "
            f"classes); its own {len(known)} classes are {abbreviate(shown)}. Name the classes as the teacher does "
            "(for ImageNet, identifiers such as n01440764 also work), or give a teacher trained on the same classes"
        )
    chosen = [min(place) for place in found.values()]
    twice = [name for name, place in zip(wanted, chosen, strict=True) if chosen.count(place) > 1]
    if twice:
        raise ConfigError(f"the teacher {teacher} has a single class for {abbreviate(twice)}; rename them")
    return chosen


def class_words(name: str, count: int) -> list[list[str]]:
    """Return all names of each class of a timm model: ImageNet's, if it has those classes, else numbers."""
    cfg: Any = timm.get_pretrained_cfg(name)
    subset = timm.data.infer_imagenet_subset(cfg)
    if subset is not None:
        info = timm.data.ImageNetInfo(subset)
        if info.num_classes() == count:
            named = [(info.index_to_description(place), info.index_to_label_name(place)) for place in range(count)]
            # Include indices, since shards and arrays of ImageNet have no names.
            return [[words, *words.split(","), synset, str(place)] for place, (words, synset) in enumerate(named)]
    if cfg is not None and cfg.label_names is not None and len(cfg.label_names) == count:
        return [[str(label)] for label in cfg.label_names]
    return [[f"class {place}"] for place in range(count)]


def find_pretrained(name: str) -> Path:
    """Return the file of a timm model's pretrained weights."""
    name = resolve_name(name)
    cfg = _describe_weights(name)
    if cfg is None or not cfg.has_weights:
        near = ", ".join(timm.list_pretrained(f"{name.split('_')[0]}*")[:3])
        raise ConfigError(
            f"--pretrained (model.pretrained): {name} has no pretrained weights; remove it, give weights with "
            f"--checkpoint FILE, or choose a model that has some{f', such as {near}' if near else ''}"
        )
    return _fetch(name, cfg, f"give a file or a run with --checkpoint FILE|RUN and --model {name}")


def _fetch(name: str, cfg: Any, instead: str | None = None) -> Path:
    """Return the file of a model's weights from the hub or its cache; fail fast without a network."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    own = f"{name}@FILE" if is_ours(name) else f"{PREFIX}{name}@FILE.safetensors"
    instead = instead or f"give a file with {own}"
    file = (cfg.hf_hub_filename or "model.safetensors").replace("pytorch_model.bin", "model.safetensors")
    if not cfg.hf_hub_id:
        raise CheckpointError(f"timm's hub has no weights for {name}; {instead}")
    kept = try_to_load_from_cache(cfg.hf_hub_id, file)
    if isinstance(kept, str):
        return Path(kept)
    try:
        _reach(constants.ENDPOINT)  # the hub's client retries for most of a minute
        return Path(hf_hub_download(cfg.hf_hub_id, file))
    except (OSError, HfHubHTTPError, ValueError) as error:
        detail = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"timm's weights for {name} are not on this machine and could not be downloaded ({type(error).__name__}: "
            f"{detail}). Run once with network access to cache them, or {instead}"
        ) from None


def _reach(address: str) -> None:
    """Connect once to a server, or to its proxy."""
    proxies = urllib.request.getproxies()
    first = urlsplit(proxies.get(urlsplit(address).scheme) or proxies.get("all") or address)
    port = first.port or {"https": 443, "http": 80}.get(first.scheme, 1080)
    socket.create_connection((first.hostname or "", port), timeout=WAIT).close()


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").replace("-", " ").split())
