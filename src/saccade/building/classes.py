"""Find tensors with one row per class, and match the classes of a file with the data's."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.spec import InputSpec
from ..data.split import abbreviate
from ..models._backbone import Backbone
from ..settings import short

CLASSIFIERS = (nn.Linear, nn.Conv1d, nn.Conv2d)  # layers with one row per output


class Classes:
    """Relation of a file's classes to the data's, with notes.

    Args:
        about: the file's metadata, unchecked.
        spec: the data's specification.
        file: the file's name for notes.
    """

    def __init__(self, about: Mapping[str, Any], spec: InputSpec, file: Path) -> None:
        names = about.get("outputs", about.get("classes"))
        self.task = short(str(about.get("task", "classify")))
        self.spec, self.file = spec, file
        self.same, self.order, self.note = True, None, ""
        names = list(map(str, names)) if isinstance(names, list) else None
        self.count = None if names is None else len(names)
        if names is None:
            if len(spec.outputs) > 1:
                self.note = (
                    f"{file.name} does not name its {len(spec.outputs)} classes; they are assumed to be the "
                    f"dataset's, in this order: {abbreviate(spec.outputs)}"
                )
        elif self.task == spec.task and sorted(names) == sorted(spec.outputs):
            if names != list(spec.outputs):
                self.order = torch.tensor([names.index(output) for output in spec.outputs])
        else:
            self.same = False
            had, has = ("", "") if self.task == spec.task else (f"the task {self.task}: ", f"the task {spec.task}: ")
            had, has = had + abbreviate(names), has + abbreviate(spec.outputs)
            self.note = f"{file.name} was trained for {had}; the dataset is for {has}"

    def match(self, model: nn.Module, before: Mapping[str, Tensor], rows: set[str] | None) -> list[str]:
        """Reorder loaded tensors to the data's classes, or restore their previous values.

        Args:
            rows: tensors with one row per class; None if unknown.

        Returns:
            Tensors for other classes, or in an unknown order.
        """
        self.say(rows)
        own, others = model.state_dict(), self._for_others(before, rows)
        with torch.no_grad():
            for key in others:
                own[key].copy_(before[key])
            if self.same and self.order is not None:
                for key in rows or ():
                    own[key].copy_(own[key][self.order])
        return others

    def _for_others(self, before: Mapping[str, Tensor], rows: set[str] | None) -> list[str]:
        """Return the tensors for other classes, including those of equal number."""
        if self.fits(rows) or (not self.same and rows is None and self.count not in (None, len(self.spec.outputs))):
            return []  # in the latter case class tensors were not loaded
        return list(before) if self.same or rows is None else [key for key in before if key in rows]

    def fits(self, rows: set[str] | None) -> bool:
        """Whether the file's class tensors can be used for the data's classes."""
        return self.same and (self.order is None or rows is not None)

    def say(self, rows: set[str] | None) -> None:
        """Add a note on the relation, once."""
        note = self.note
        if self.order is not None:
            done = (
                ("its head cannot be reordered and is reinitialized")
                if rows is None
                else "its classifier was reordered"
            )
            note = f"{self.file.name} has the dataset's classes in another order; {done}"
        self.spec.notes += [note] if note and note not in self.spec.notes else []


def cfg_of(model: nn.Module) -> Mapping[str, Any]:
    """Return a model's timm configuration, such as the names of its classifier."""
    cfg = getattr(model, "default_cfg", None) or {}
    return cfg if isinstance(cfg, Mapping) else vars(cfg)


def heads_of(model: nn.Module) -> tuple[str, ...]:
    """Return the modules that depend on the classes."""
    if isinstance(model, Backbone):
        return model.classifier
    classifier = cfg_of(model).get("classifier", "head") or "head"
    return (classifier,) if isinstance(classifier, str) else tuple(classifier)


def class_rows(model: nn.Module, keys: Iterable[str], classes: int) -> set[str] | None:
    """Return a model's tensors with one row per class; None if uncertain.

    A model may name the layers in `class_layers`. Otherwise each classifier module must have exactly one layer whose
    number of outputs equals the number of classes.
    """
    own, keys = model.state_dict(), list(keys)
    named = getattr(model, "class_layers", None)
    found: set[str] = set()
    for head in heads_of(model) if named is None else named:
        wide = [key for key in keys if within(key, (head,)) and own[key].ndim and len(own[key]) == classes]
        layers = {key.rpartition(".")[0] for key in wide}
        if len(layers) > 1 or not all(isinstance(model.get_submodule(layer), CLASSIFIERS) for layer in layers):
            return None
        found |= set(wide)
    return found or None


def within(key: str, modules: Iterable[str]) -> bool:
    """Whether a tensor belongs to one of the modules, by name."""
    return any(key == name or key.startswith(f"{name}.") for name in modules)
