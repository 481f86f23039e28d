"""Hosts of tasks whose models are from Hugging Face."""

from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ...data.spec import InputSpec
from ...plugins.pretrained import import_transformers
from ...settings import ConfigError, ModelConfig
from ..hosts import Hosts
from ..huggingface import build_host, describe_host, explained, quietly, read_config, safe, words_of
from .marks import mark_spec
from .tokens import Reading, open_tokenizer

VOCABULARIES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spm.model", "spiece.model",
    "sentencepiece.bpe.model",
)  # fmt: skip
PIECES = VOCABULARIES[-3:]  # read by another package
LONGEST = 1_000_000  # larger limits of a tokenizer mean no limit


class TextHosts(Hosts):
    """Builds Hugging Face models with their tokenizers.

    Attributes:
        host_kind: the transformers auto class of supported models.
    """

    host_kind: ClassVar[str] = "SEQUENCE_CLASSIFICATION"
    recipes: ClassVar = {"modernbert": "modernbert", "deberta*": "deberta"}

    @classmethod
    def find_model(cls, name: str) -> str:
        """Return a folder or name unchanged; it is opened later."""
        return name

    @classmethod
    def builds(cls, name: str) -> bool:
        """Return True: no model is from timm."""
        return True

    @classmethod
    def describe_model(
        cls, spec: InputSpec, config: ModelConfig, how: Mapping[str, Any], *, pair: bool, trained: bool = False
    ) -> int:
        """Store a model's configuration and tokenizer in a spec; return its maximum length.

        Args:
            how: options for tokenization.
            pair: whether samples are pairs.
            trained: use a trained classifier as it is; otherwise decoders get the class token and delimiter they lack.
        """
        host = describe_host(config.name, spec.outputs, kind=cls.host_kind)
        tokenizer = describe_tokenizer(config.name, host)
        own: dict[str, str | None] = {name: tokenizer.pop(name) for name in ("cls", "sep")}
        kinds, limit = words_of(host["config"]).get("type_vocab_size", 0) or 0, tokenizer["limit"]
        reading = Reading(
            **(tokenizer | {"limit": min(how["max_length"] or limit, limit)}),
            kinds=isinstance(kinds, int) and kinds > 1,
            truncate=how["truncate"],
            pair=pair,
        )
        spec.extra |= {"host": host, "scratch": how["scratch"]}
        reading = reading if trained else mark_spec(spec, reading, kind=cls.host_kind, **own)
        spec.extra["tokens"] = asdict(reading)
        return limit

    @classmethod
    def create_model(cls, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Build the model, for training with pretrained weights."""
        begins = config.pretrained and not spec.extra.get("scratch")  # a file of weights does not refer to others
        return build_host(spec, kind=cls.host_kind, weights=config.name if begins else None)

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse an invalid spec."""
        Reading.of(spec)
        read_config(spec, kind=cls.host_kind)


def describe_tokenizer(name: str, host: dict[str, Any]) -> dict[str, Any]:
    """Return a model's tokenizer, padding token (also set in `host`), maximum length, class token and separator."""
    transformers = import_transformers()
    folder = Path(name).expanduser()
    files = [file for file in VOCABULARIES if (folder / file).is_file()]
    if folder.is_dir() and not files:
        raise ConfigError(
            f"the tokenizer of {name!r} is missing: no {' or '.join(VOCABULARIES[:3])}; put one next to the model"
        )
    if files and set(files) <= set(PIECES) and find_spec("sentencepiece") is None:
        raise ConfigError(
            f"the tokenizer of {name!r} is {files[0]}, which transformers reads with sentencepiece; run pip install "
            "sentencepiece protobuf, or save the tokenizer as tokenizer.json"
        )
    with explained(name, what="tokenizer"), quietly():
        made = transformers.AutoTokenizer.from_pretrained(name, **safe(name))
    backend = getattr(made, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(
            f"the tokenizer of {name} cannot be used with the library `tokenizers`; save it as tokenizer.json"
        )
    cut_left = made.truncation_side == "left"
    if cut_left:  # also part of what a resumed run compares
        backend.enable_truncation(2, direction="left")
    text = backend.to_str()
    config, tokens = words_of(host["config"]), open_tokenizer(text)
    rows = config.get("vocab_size")
    if isinstance(rows, int) and tokens.get_vocab_size(with_added_tokens=True) > rows:
        raise ConfigError(
            f"the tokenizer of {name} has {tokens.get_vocab_size(with_added_tokens=True)} tokens, but the model has "
            f"{rows} embeddings: they do not belong together. Put the model's own tokenizer into its folder"
        )
    own = made.pad_token_id
    pad = next((n for n in (own, made.eos_token_id, made.bos_token_id, made.unk_token_id) if n is not None), None)
    if pad is None:
        raise ConfigError(f"the tokenizer of {name} has no token that could serve as padding; add a pad token")
    config["pad_token_id"] = pad
    found = {"tokenizer": text, "pad": int(pad), "own_pad": own is not None, "limit": _limit(made, config)}
    return found | {"cls": made.cls_token, "sep": made.sep_token, "cut_left": cut_left}


def _limit(tokenizer: Any, config: dict[str, Any]) -> int:
    """Return a model's maximum number of tokens."""
    places = config.get("max_position_embeddings") or config.get("n_positions") or LONGEST
    if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet", "xlm-roberta-xl"):
        places -= int(config.get("pad_token_id") or 0) + 1  # positions start after the padding id
    known = tokenizer.model_max_length
    if type(places) is not int or not isinstance(known, int | float) or not min(places, known) >= 2:
        limits = (
            f"the maximum number of tokens is {str(places)[:60]} in the model and {str(known)[:60]} in its tokenizer"
        )
        raise ConfigError(f"{limits}; both must be whole numbers")
    return int(min(places, known if known < LONGEST else places))
