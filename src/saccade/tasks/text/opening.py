"""Open a trained Hugging Face text classifier."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from ...data.spec import InputSpec
from ...plugins.pretrained import RECORD, from_pretrained, import_transformers, recorded_plugins
from ...settings import ConfigError, ModelConfig
from ..hosts import PREFIX
from ..huggingface import build_host, explained, quietly, safe
from .hosts import TextHosts
from .task import ClassifyText

ARCHITECTURE = "ForSequenceClassification"  # suffix of architectures of trained classifiers
ONE_LABEL = (None, "single_label_classification")  # `problem_type` of single-label classifiers
# A spec's image settings, which are not used.
IMAGES: dict[str, Any] = {"in_chans": 3, "img_size": 224, "mean": [0.5] * 3, "std": [0.5] * 3}


def open_hosted(target: str) -> tuple[nn.Module, InputSpec]:
    """Build a trained text classifier with tokenizer and plug-ins, in evaluation mode, without remote code.

    Args:
        target: `hf:` and a folder that `save_pretrained` wrote, or a name on Hugging Face.
    """
    name = os.path.expanduser(target.removeprefix(PREFIX))
    transformers = import_transformers()
    with explained(name), quietly():
        config = transformers.AutoConfig.from_pretrained(name, **safe(name))
    outputs = _classes(target, config)
    spec = InputSpec(outputs, **IMAGES, task=ClassifyText.name, extra={"metric": "accuracy", "columns": ["text"]})
    how = {"max_length": None, "truncate": False, "scratch": False}
    TextHosts.describe_model(spec, ModelConfig(name=name), how, pair=False, trained=True)
    if not getattr(config, RECORD, None):
        return build_host(spec, kind=TextHosts.host_kind, weights=name, whole=True).eval(), spec
    if not Path(name).is_dir():
        raise ConfigError(
            f"{target} has saccade plug-ins, which can only be loaded from a folder; download it and give hf:FOLDER"
        )
    with explained(name, f"model with the plug-ins {', '.join(recorded_plugins(Path(name)))}"), quietly():
        return from_pretrained(name).float().eval(), spec


def _classes(target: str, config: Any) -> tuple[str, ...]:
    """Return the class names of a configuration; refuse models that are not single-label classifiers."""
    named = getattr(config, "architectures", None) or ()
    trained = [str(one) for one in named] if isinstance(named, list | tuple) else [f"architectures = {named!r}"[:60]]
    if not any(one.endswith(ARCHITECTURE) for one in trained):
        raise ConfigError(
            f"{target} was given, but it is {' or '.join(trained) or 'a configuration alone'}; only a trained text "
            f"classifier (...{ARCHITECTURE}) can be used directly, other models after `saccade train`"
        )
    labels: Any = getattr(config, "id2label", None)
    problem = getattr(config, "problem_type", None)
    count = len(labels) if isinstance(labels, dict) else 0
    if problem not in ONE_LABEL or count < 2:
        raise ConfigError(
            f"{target} was given, but its config.json has problem_type = {str(problem)[:60]!r} and {count} "
            f"label{'' if count == 1 else 's'}. Only a classifier that chooses one of two or more labels "
            f"({ONE_LABEL[1]}) can be used directly"
        )
    if set(labels) != set(range(count)):
        raise ConfigError(
            f"{target} was given, but id2label in its config.json numbers {count} labels "
            f"{sorted(map(str, labels))[:8]}: number the labels from 0 without gaps"
        )
    return tuple(str(labels[place]) for place in range(count))
