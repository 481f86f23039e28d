"""A class token at the end and a delimiter between two texts, for decoders whose tokenizers add neither.

As in SoT's Figure S-3: GPT reads `first [SEP] second [CLS]`, without segments.
"""

import itertools
import json
from dataclasses import replace
from typing import Any

import torch

from ...data.spec import InputSpec
from ...plugins.pretrained import import_transformers
from ...plugins.tokens import find_host
from ..huggingface import quietly, read_config, words_of
from .tokens import Reading, open_tokenizer

CLASS, DELIMITER = "[CLS]", "[SEP]"
TRIED = 1000  # entries of a vocabulary


def mark_spec(spec: InputSpec, reading: Reading, *, kind: str, cls: str | None, sep: str | None) -> Reading:
    """Return the tokenization with the tokens that a decoder lacks; in `spec` its model gets embeddings for them.

    Args:
        spec: with the result of `describe_host`.
        reading: the model's own tokenization.
        kind: transformers auto class.
        cls: the tokenizer's class token, if it has one.
        sep: its separator, if it has one.
    """
    host = spec.extra["host"]
    config = words_of(host["config"])
    rows = config.get("vocab_size")
    tokens, used = mark_texts(open_tokenizer(reading.tokenizer), pair=reading.pair, cls=cls, sep=sep)
    if not used or type(rows) is not int or not _is_decoder(spec, kind=kind):
        return reading
    host["added_tokens"] = max(0, *(tokens.token_to_id(token) + 1 - rows for token in used))
    config["vocab_size"] = rows + host["added_tokens"]
    spec.notes.append(
        f"added to texts, since the tokenizer of this {host['model_type']} has no such token: {' and '.join(used)} "
        f"(new embeddings: {host['added_tokens']})"
    )
    return replace(reading, tokenizer=tokens.to_str())


def added_by(tokens: Any, *texts: str) -> list[list[str]]:
    """Return the special tokens that a tokenizer puts before, between and after texts."""
    found = tokens.encode(*texts)
    places: list[list[str]] = [[] for _ in range(len(texts) + 1)]
    last = -1
    for token, text in zip(found.tokens, found.sequence_ids, strict=True):
        if text is None:
            places[last + 1].append(token)
        else:
            last = text
    return places


def mark_texts(tokens: Any, *, pair: bool, cls: str | None, sep: str | None) -> tuple[Any, list[str]]:
    """Return a tokenizer that ends texts with a class token and separates pairs, and the tokens it adds for that.

    Args:
        tokens: of the library `tokenizers`.
        pair: whether samples are pairs.
        cls: its own class token, if it has one.
        sep: its own separator, if it has one.
    """
    tokens = type(tokens).from_str(tokens.to_str())
    words = itertools.islice(("a", *tokens.get_vocab()), TRIED)
    word = next((word for word in words if 0 in tokens.encode(word).sequence_ids), None)
    if word is None:
        return tokens, []
    before, *between, after = added_by(tokens, *[word] * (1 + pair))
    used: list[str] = []
    if not after:
        after = [cls or CLASS]
        used += after
    if pair and not between[0]:
        between = [[sep or DELIMITER]]
        used += between[0]
    if not used:
        return tokens, []
    tokens.add_special_tokens(used)
    # An earlier template would add its tokens a second time.
    single = _pieces(before, "A", after)
    double = single if not pair else _pieces(before, "A", between[0], "B", after)
    ids = {token: tokens.token_to_id(token) for token in itertools.chain(before, *between, after)}
    content = json.loads(tokens.to_str())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": double,
        "special_tokens": {token: {"id": token, "ids": [place], "tokens": [token]} for token, place in ids.items()},
    }
    return type(tokens).from_str(json.dumps(content)), used


def _pieces(*parts: list[str] | str) -> list[dict[str, Any]]:
    """Return a template of special tokens, and of texts by their letter."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            found.append({"Sequence": {"id": part, "type_id": 0}})
        else:
            found += [{"SpecialToken": {"id": token, "type_id": 0}} for token in part]
    return found


def _is_decoder(spec: InputSpec, *, kind: str) -> bool:
    """Whether a spec's model has causal attention, so that its last token represents the text."""
    config = read_config(spec, kind=kind)
    made = getattr(import_transformers(), f"AutoModelFor{kind.title().replace('_', '')}")
    with quietly(), torch.device("meta"):
        return find_host(made.from_config(config)).causal
