"""A text classifier of Hugging Face with its own weights and classes, opened as it is."""

from typing import Any

from torch import nn

from ...config import ConfigError, ModelConfig
from ...data.spec import InputSpec
from ...plugins.pretrained import import_transformers
from ..hosting import PREFIX
from ..hosts import build_host, explained, quietly, safe
from .task import ClassifyText

ARCHITECTURE = "ForSequenceClassification"  # the end of the name of one that has been trained to classify
# What a spec says of images, of which there are none.
IMAGES: dict[str, Any] = {"in_chans": 3, "img_size": 224, "mean": [0.5] * 3, "std": [0.5] * 3}


def open_hosted(target: str) -> tuple[nn.Module, InputSpec]:
    """Build a trained text classifier with its tokenizer, in evaluation mode; nothing in its folder is run.

    Args:
        target: `hf:` and a folder that `save_pretrained` wrote, or a name on Hugging Face.
    """
    name = target.removeprefix(PREFIX)
    transformers = import_transformers()
    with explained(name), quietly():
        config = transformers.AutoConfig.from_pretrained(name, **safe(name))
    trained = config.architectures or ()
    if not any(one.endswith(ARCHITECTURE) for one in trained):
        raise ConfigError(
            f"{target} was given and is {' or '.join(trained) or 'a configuration alone'}; a trained classifier of "
            f"texts (...{ARCHITECTURE}) can be asked as it is, others after `saccade train`"
        )
    outputs = tuple(str(config.id2label[place]) for place in range(config.num_labels))
    spec = InputSpec(outputs, **IMAGES, task=ClassifyText.name, extra={"metric": "accuracy", "columns": ["text"]})
    how = {"max_length": None, "truncate": False, "scratch": False}
    ClassifyText.describe_model(spec, ModelConfig(name=name), how, pair=False)
    model = build_host(spec, kind=ClassifyText.host_kind, weights=name, whole=True)
    return model.eval(), spec
