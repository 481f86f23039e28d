"""What tasks share whose models are those of Hugging Face."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar

from torch import nn

from ...config import AugmentConfig, ConfigError, ModelConfig, TrainConfig
from ...data.spec import InputSpec
from ..task import Task
from .hosts import build_host, describe_host, describe_tokenizer, read_config
from .tokens import Reading


class OnHuggingFace(Task):
    """A task whose model is a folder or a name on Hugging Face, with its tokenizer.

    Attributes:
        host_kind: of the mapping of transformers that has to know the model.
    """

    recipe = "text"
    own_models = True
    host_kind: ClassVar[str]

    @classmethod
    def adapt_host(cls, config: TrainConfig, **engine: Any) -> TrainConfig:
        """Return settings without what is made for images and timm's models."""
        if config.model.checkpoint is not None:
            raise ConfigError("model.checkpoint was given; the model begins with the weights in its own folder")
        return replace(
            config,
            model=replace(config.model, options={}, drop_path=None, pretrained=True),
            augment=AugmentConfig(crop="none", flip=0.0),
            engine=replace(config.engine, channels_last=False, **engine),
        )

    @classmethod
    def find_model(cls, name: str) -> str:
        """Return a folder or a name as it is; it is opened when it is needed."""
        return name

    @classmethod
    def describe_model(cls, spec: InputSpec, config: ModelConfig, how: Mapping[str, Any], *, pair: bool) -> int:
        """Keep a model's configuration and its tokenizer in a spec; return how many tokens it takes."""
        host = describe_host(config.name, spec.outputs, kind=cls.host_kind)
        tokenizer = describe_tokenizer(config.name, host)
        kinds, limit = host["config"].get("type_vocab_size", 0) or 0, tokenizer["limit"]
        reading = Reading(
            **(tokenizer | {"limit": min(how["max_length"] or limit, limit)}),
            kinds=isinstance(kinds, int) and kinds > 1,
            truncate=how["truncate"],
            pair=pair,
        )
        spec.extra |= {"host": host, "tokens": asdict(reading), "scratch": how["scratch"]}
        return limit

    @classmethod
    def create_model(cls, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Build the model; in training, with the weights that settings name."""
        begins = config.pretrained and not spec.extra.get("scratch")  # a file of weights names no others
        return build_host(spec, kind=cls.host_kind, weights=config.name if begins else None)

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse a spec that no text can be read by."""
        Reading.of(spec)
        read_config(spec, kind=cls.host_kind)
