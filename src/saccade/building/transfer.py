"""Transfer weights of plug-ins and task heads, after these are added to a model with initial weights."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.spec import InputSpec
from ..data.split import abbreviate
from ..models import CheckpointError
from ..plugins import PLUGINS, attached
from ..plugins.pretrained import read_folder, recorded_plugins
from ..plugins.trained import note_changed_outputs
from ..runs.metadata import PLUGIN_TEXT
from ..settings import ConfigError
from ..settings.registry import option_defaults, option_hints, parse_options
from ..support.files import read_record
from ..tasks.hosting import Hosted
from ..tasks.hosts import PREFIX
from .checkpoint import COUNTER, Fit, Started, list_misfits, refuse_misfit
from .classes import Classes, class_rows, heads_of, within

MAX_CHARS_SHOWN = 200  # most characters of a plug-in in notes


class WeightTransfer:
    """Loads the weights of added parts from the file that a model started from, and reports mismatches.

    Args:
        started: the result of loading the file into the backbone.
        model: the backbone with a task's head, if there is one.
        spec: the data's specification, which collects notes.
    """

    def __init__(self, started: Started, model: nn.Module, spec: InputSpec) -> None:
        self.started, self.model, self.spec = started, model, spec
        path = next(path for path, module in model.named_modules() if module is started.host)
        self.prefix = f"{path}." if path else ""
        self.weights = {f"{self.prefix}{key}": value for key, value in started.fit.given.items()} | started.head
        self.placed = {f"{self.prefix}{key}" for key in started.fit.weights}
        self.refused: set[str] = set()  # tensors for other classes
        self.parts = [part for part in map(_read, started.plugins) if part.on_model]
        if started.head and model is not started.host:
            self._place_head()

    @contextmanager
    def attaching(self, text: str) -> Iterator[None]:
        """Load the weights of a plug-in that is attached within this context."""
        asked, before = _read(text), self._tensors()
        messages: list[str] = []
        shape = (self.spec.in_chans, self.spec.img_size, self.spec.img_size)
        alike = [part for part in self.parts if part.name == asked.name and not part.found]
        previous = next((part for part in alike if part.options == asked.options), next(iter(alike), None))
        # The features that were trained are those with the plug-in, if the file has it.
        own = self.started.own_classes
        with note_changed_outputs(self.model, text, shape, messages.append, classifier=own, features=previous is None):
            yield
        known = {id(value) for value in before.values()}
        brought = {key: value for key, value in self._tensors().items() if id(value) not in known}
        taken, new = self._take(
            brought, _class_rows(self.model, asked, len(self.spec.outputs)), known=previous is not None
        )
        if previous is None and not taken:
            self.spec.notes += messages
            return
        where = ""
        if previous is not None:
            previous.found, previous.same = True, previous.options == asked.options
            where = "" if previous.same else f", where it was {previous.text}"
        if new and not taken:
            assert previous is not None
            self.spec.notes.append(
                f"{text}: reinitialized {abbreviate(new)}, since {self._file} was trained with {previous.text}"
            )
            self.spec.notes += messages
        elif taken:
            rest = f"; reinitialized: {abbreviate(new)}" if new else ""
            self.spec.notes.append(f"{text}: parameters loaded from {self._file}{where}{rest}")
        else:
            self.spec.notes.append(f"{text}: same as in the model of {self._file}{where}")

    def finish(self, *, name: str) -> None:
        """Refuse weights that the model lacks parts for, and note unused tensors."""
        own, fit = self.model.state_dict(), self.started.fit
        missing, mismatched = (
            [key for key in keys if (full := self.prefix + key) in own and full not in self.placed]
            for keys in (fit.missing, fit.mismatched)
        )
        handled = self.placed | self.refused
        surplus = [key for key in fit.rest if self.prefix + key not in handled and not key.endswith(COUNTER)]
        lost = {"missing": missing, "mismatched": mismatched, "surplus": surplus}
        if missing or mismatched:
            self._refuse_plugins(lost, name=name)
        if missing or mismatched or (surplus and not self.parts):
            refuse_misfit(self.started, lost, name=name)
        if lacking := [key for key in self.started.lacking if self.prefix + key in own]:
            self.spec.notes.append(
                f"{self._file} was trained for the task {self.started.classes.task}, which removes "
                f"{abbreviate(lacking)}; these are reinitialized"
            )
        for part in self.parts:
            if not part.found:
                self.spec.notes.append(self._left(part))
        surplus += [key for key in self.started.head if key not in handled]
        if surplus:
            self.spec.notes.append(f"not loaded from {self._file} (not in the model): {abbreviate(surplus)}")

    @property
    def _file(self) -> str:
        return self.started.file.name

    def _tensors(self) -> dict[str, Any]:
        return self.model.state_dict(keep_vars=True)

    def _place_head(self) -> None:
        """Load a dense task's head, each part completely or not at all."""
        own, heads = self._tensors(), heads_of(self.model)
        own = {key: value for key, value in own.items() if not key.startswith(self.prefix)}
        before = {key: value.detach().clone() for key, value in own.items() if within(key, heads)}
        dropped: list[str] = []
        for head in heads:
            keys = [key for key in before if within(key, (head,))]
            given = [key for key in self.started.head if within(key, (head,))]
            if keys and _counted(keys) == _counted(given) and self._fit(keys, own):
                self._copy(keys, own)
            elif keys:
                dropped += given
        self._copy([key for key in own if not within(key, heads) and self._fit([key], own)], own)
        if loaded := [key for key in before if key in self.placed]:
            rows = class_rows(self.model, loaded, len(self.spec.outputs))
            unfit = self.started.classes.match(self.model, {key: before[key] for key in loaded}, rows)
            for key in unfit:
                self.started.parameters.pop(id(own[key]), None)
            dropped += unfit
        if dropped:
            self.refused |= set(dropped)
            self.spec.notes.append(f"not loaded from {self._file} (other head or classes): {abbreviate(dropped)}")
        if new := [key for key in own if not within(key, heads) and key not in self.placed]:
            self.spec.notes.append(f"reinitialized, since {self._file} has no matching tensors: {abbreviate(new)}")

    def _take(self, brought: dict[str, Any], rows: set[str], *, known: bool) -> tuple[list[str], list[str]]:
        """Copy a plug-in's weights, each module completely or not at all.

        Args:
            brought: its tensors in the model.
            rows: tensors with one row per class.
            known: whether the file's metadata has the plug-in; otherwise it is detected by tensors that the backbone
                lacks.

        Returns:
            The tensors that were copied, and the new ones.
        """
        taken: list[str] = []
        new: list[str] = []
        host = {f"{self.prefix}{key}" for key in self.started.fit.weights}
        for keys in self._modules(brought):
            body = [key for key in keys if key not in rows]
            if self._fit(body, brought) and (known or any(key in self.weights and key not in host for key in keys)):
                self._copy(body, brought)
                taken += body
                taken += self._take_rows([key for key in keys if key in rows and key in self.weights], brought)
            else:
                self.placed -= set(keys)
                new += keys
        return taken, new

    def _take_rows(self, keys: list[str], brought: dict[str, Any]) -> list[str]:
        """Copy tensors with one row per class, if the classes match."""
        classes = self.started.classes
        named = {key for key in keys if _named_classifier(key)}
        rows = named or (set(keys) if len({key.rpartition(".")[0] for key in keys}) == 1 else None)
        if keys and classes.fits(rows) and self._fit(keys, brought):
            self._copy(keys, brought)
            classes.match(self.model, {key: brought[key] for key in keys}, rows)
            return keys
        if keys:
            if not classes.fits(rows):
                classes.say(rows)
            self.refused |= set(keys)
            self.spec.notes.append(f"not loaded from {self._file} (other classes): {abbreviate(keys)}")
        return []

    def _modules(self, brought: Iterable[str]) -> list[list[str]]:
        """Return the names of a plug-in's tensors, grouped by module."""
        paths = {id(module): path for path, module in self.model.named_modules()}
        roots = [paths[id(module)] for module in attached(self.model)[-1].modules() if id(module) in paths]
        found: defaultdict[str, list[str]] = defaultdict(list)
        for key in brought:
            found[next((root for root in roots if key.startswith(f"{root}.")), key)].append(key)
        return list(found.values())

    def _fit(self, keys: Iterable[str], own: dict[str, Any]) -> bool:
        """Whether the file has the tensors in the model's shapes; batch counters may be missing."""
        return all(
            own[key].shape == self.weights[key].shape if key in self.weights else key.endswith(COUNTER) for key in keys
        )

    def _copy(self, keys: Iterable[str], own: dict[str, Any]) -> None:
        with torch.no_grad():
            for key in keys:
                if key in self.weights:
                    own[key].copy_(self.weights[key])
                    self.placed.add(key)
                    self.started.parameters[id(own[key])] = own[key]

    def _refuse_plugins(self, lost: dict[str, list[str]], *, name: str) -> None:
        """Refuse weights in which another plug-in had replaced a part of the model."""
        others = [part.text for part in self.parts if not part.same]
        if others:
            raise CheckpointError(
                f"{self.started.file} was trained with the plug-in {', '.join(others)} and does not fit {name} "
                f"without it: {list_misfits(lost)}. Add {' '.join(f'--plugin {text}' for text in others)}, or give "
                "other weights. Nothing was loaded"
            )

    def _left(self, part: "Part") -> str:
        if part.is_head and self.model is not self.started.host:
            return f"not loaded from {self._file}: {part.text}, its classification head"
        return (
            f"{self._file} was trained with {part.text}, which this model does not have; add --plugin {part.text} to "
            "keep it"
        )


def start_from_folder(model: nn.Module, name: str, spec: InputSpec) -> Started | None:
    """Return the plug-in weights of a Hugging Face folder; None without plug-ins.

    Args:
        model: a transformers model, possibly wrapped by a task.
        name: the folder, as in settings.
        spec: the data's specification, which collects notes.
    """
    folder = Path(name.removeprefix(PREFIX)).expanduser()
    plugins = recorded_plugins(folder)
    if not plugins:
        return None
    host: nn.Module = model.host if isinstance(model, Hosted) else model
    given, own = read_folder(folder), host.state_dict()
    labels = read_record(folder / "config.json").get("id2label")
    outputs = list(labels.values()) if isinstance(labels, dict) else None
    about = {"model": {"plugins": plugins}, "outputs": outputs, "task": spec.task}
    weights = {key: value for key, value in given.items() if key in own and own[key].shape == value.shape}
    fit = Fit(given, weights, [key for key in given if key not in own], [], [], [], [])
    return Started(folder, host, about, fit, {}, Classes(about, spec, folder), own_classes=False)


@dataclass
class Part:
    """A plug-in of settings or metadata."""

    text: str
    name: str
    options: Any  # options with defaults; the text if they cannot be parsed
    on_model: bool  # whether it is attached to the model, not part of the task
    is_head: bool  # whether it is a classifier
    found: bool = False  # whether the model has it, possibly with other options
    same: bool = False  # whether the options are equal


def _read(text: str) -> Part:
    """Parse a plug-in of settings or of a file, which may be untrusted."""
    given = text
    if len(text) > PLUGIN_TEXT or not text.isprintable():
        given = text = ascii(text[:MAX_CHARS_SHOWN])
    elif len(text) > MAX_CHARS_SHOWN:
        text = f"{text[:MAX_CHARS_SHOWN]}..."
    name = given.partition(":")[0].strip()
    try:
        made = PLUGINS.find(name)
        hints, typed = option_hints(made), {"teacher": str, "maps": str}
        options: Any = option_defaults(made) | parse_options(given, PLUGINS, typed=typed)[1]
        options.pop("num_classes", None)
    except (ConfigError, ValueError, TypeError, RecursionError, OverflowError):
        return Part(text, name[:MAX_CHARS_SHOWN], given, on_model=True, is_head=False)
    return Part(text, name, options, on_model=hasattr(made, "install"), is_head="num_classes" in hints)


def _class_rows(model: nn.Module, part: Part, classes: int) -> set[str]:
    """Return the class tensors of the plug-in attached last."""
    if not part.is_head:
        return set()
    inside = {id(inner) for module in attached(model)[-1].modules() for inner in module.modules()}
    wide = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if id(module) in inside and isinstance(module, nn.Linear) and module.out_features == classes
        for name, _ in module.named_parameters(recurse=False)
    }
    # Other layers may have as many outputs by chance.
    return {key for key in wide if _named_classifier(key)} or wide


def _named_classifier(key: str) -> bool:
    return key.split(".")[-2] in ("class_fc", "word_fc")


def _counted(keys: Iterable[str]) -> set[str]:
    return {key for key in keys if not key.endswith(COUNTER)}
