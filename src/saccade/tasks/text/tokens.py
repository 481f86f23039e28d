"""Tokenized texts, stored flat and returned as right-padded rows."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.feed import Batch
from ...data.framing import Encoded
from ...data.source import Sample
from ...data.spec import InputSpec
from ...support.telling import tell

# Padded widths: few, so that steps can be replayed, and dense enough to waste little.
LADDER = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
MANY = 100_000  # texts that are tokenized at once, which takes seconds
NAMED = 5  # most texts listed in an error
GROWTH = 1024  # largest factor by which a tokenizer's normalizers may lengthen a text
STEADY = ("Strip", "StripAccents", "Lowercase", "NFC", "Split", "Whitespace", "WhitespaceSplit", "Punctuation")
GROWS = dict.fromkeys((*STEADY, "Digits", "CharDelimiterSplit", "BertPreTokenizer", "UnicodeScripts"), 1)
GROWS |= {"NFKC": 18, "NFKD": 18, "NFD": 4}
TOKENIZER_CHARS = 2**26  # most characters of a serialised tokenizer
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class TextError(ValueError):
    """Texts that a model cannot take."""


@dataclass(frozen=True)
class Tokens:
    """The concatenated tokens of many texts."""

    ids: Tensor  # token ids of all texts, int32
    kinds: Tensor  # token types: 0 for the first text of a pair, 1 for the second, uint8
    starts: Tensor  # start of each text, N int64
    lengths: Tensor  # length of each text, N int64
    cut: int = 0  # number of truncated texts

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> "Tokens":
        """Move to a device; lengths also stay on the host."""
        return Tokens(self.ids.to(device), self.kinds.to(device), self.starts.to(device), self.lengths.to(device))

    def rows(self, index: Tensor, width: int, *, pad: int, kinds: bool) -> Batch:
        """Return texts as padded rows, B, width."""
        column = torch.arange(width, device=self.ids.device)
        there = column < self.lengths[index, None]
        place = torch.where(there, self.starts[index, None] + column, 0)
        batch = {"input_ids": torch.where(there, self.ids[place], pad).long(), "attention_mask": there.long()}
        if kinds:
            batch["token_type_ids"] = torch.where(there, self.kinds[place], 0).long()
        return batch


@dataclass(frozen=True)
class Reading:
    """A model's tokenization, stored in its spec."""

    tokenizer: str  # serialised by the library `tokenizers`
    pad: int  # id of the padding token
    own_pad: bool  # whether that token has no other use
    limit: int  # most tokens of a text
    kinds: bool  # whether the model takes token types
    truncate: bool  # truncate longer texts instead of refusing them
    pair: bool  # whether samples are pairs
    cut_left: bool = False  # truncate at the start of texts; earlier specs do not say

    @classmethod
    def of(cls, spec: InputSpec) -> "Reading":
        """Read a spec, which may be untrusted, or raise ValueError."""
        given = spec.extra.get("tokens")
        names = dict(cls.__annotations__)
        if isinstance(given, dict):
            given = {"cut_left": False, **given}
        if not isinstance(given, dict) or set(given) != set(names):
            raise ValueError("its spec does not describe the tokenization")
        if not all(type(given[name]) is kind for name, kind in names.items()):
            raise ValueError("the tokenization in its spec is not in the format that training writes")
        ranged = 0 <= given["pad"] < 2**31 and 2 <= given["limit"] < 2**24
        if not ranged or len(given["tokenizer"]) > TOKENIZER_CHARS:
            raise ValueError("pad, limit or tokenizer in its spec are out of range")
        return cls(**given)

    def width(self, longest: int) -> int:
        """Return the padded width for texts of the given length."""
        step = next((step for step in LADDER if step >= longest), -(-longest // 128) * 128)
        return max(min(step, self.limit), longest)

    def encode(self, texts: Sequence[tuple[str, ...]], *, names: Sequence[str] | None = None) -> Tokens:
        """Tokenize texts.

        Args:
            texts: one or two texts a sample.
            names: names for errors; default: numbers from 1.
        """
        wrong = next((n for n, one in enumerate(texts) if len(one) != 1 + self.pair), None)
        called = names or [f"text {number + 1}" for number in range(len(texts))]
        if wrong is not None:
            asked = "two texts, a pair" if self.pair else "one text"
            raise TextError(
                f"{called[wrong]} has {len(texts[wrong])} texts; the model was trained on {asked} per sample"
            )
        for name, one in zip(called, texts, strict=True):
            _require_letters(name, one)
        made = open_tokenizer(self.tokenizer)
        added = made.num_special_tokens_to_add(self.pair)
        if self.pair and not added:  # in runs of decoders that were begun without a delimiter
            texts = [("\n".join(one),) for one in texts]
        found = _encode(made, texts)
        lengths = np.array([len(one.ids) for one in found], dtype=np.int64)
        long = np.flatnonzero(lengths > self.limit)
        if len(long):
            if not self.truncate:
                raise TextError(self._too_long(long, lengths, called))
            made = open_tokenizer(self.tokenizer, limit=self.limit, cut_left=self.cut_left)
            again = _encode(made, [texts[n] for n in long.tolist()])
            for number, one in zip(long, again, strict=True):
                found[number], lengths[number] = one, len(one.ids)
        empty = np.flatnonzero(lengths == 0)
        if len(empty):
            raise TextError(f"{called[empty[0]]} has no tokens: the tokenizer knows nothing in it")
        if not self.own_pad:
            self._refuse_ending(found, called)
        return Tokens(
            torch.from_numpy(np.concatenate([np.asarray(one.ids, dtype=np.int32) for one in found])),
            torch.from_numpy(np.concatenate([np.asarray(one.type_ids, dtype=np.uint8) for one in found])),
            torch.from_numpy(np.cumsum(lengths) - lengths),
            torch.from_numpy(lengths),
            cut=len(long),
        )

    def _too_long(self, long: np.ndarray, lengths: np.ndarray, called: Sequence[str]) -> str:
        some = ", ".join(f"{called[n]} ({lengths[n]} tokens)" for n in long[:NAMED])
        more = f" and {len(long) - NAMED} more" if len(long) > NAMED else ""
        return (
            f"{len(long)} of {len(lengths)} texts have more tokens than the maximum of {self.limit}: {some}{more}. "
            "Shorten them, truncate them with --task text:truncate=true, or choose a model with a larger maximum "
            "length"
        )

    def _refuse_ending(self, found: Sequence[Any], called: Sequence[str]) -> None:
        ending = next((n for n, one in enumerate(found) if one.ids[-1] == self.pad), None)
        if ending is not None:
            raise TextError(
                f"{called[ending]} ends with the token {found[ending].tokens[-1]!r}, which also serves as padding "
                "because the tokenizer has no pad token: the model would ignore the end of the text. Give the "
                "tokenizer a pad token, or change the text"
            )


def _require_letters(name: str, texts: tuple[str, ...]) -> None:
    """Refuse surrogates, from JSON or undecodable bytes."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise TextError(
            f"{name} contains an incomplete character ({error.object[error.start]!r}); save it as UTF-8"
        ) from None


@dataclass(frozen=True)
class TextEncoder:
    """Encodes single texts, for evaluate, predict and serve."""

    reading: Reading

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a text's tokens."""
        texts = tuple(sample.inputs[name] for name in ("text", "pair") if name in sample.inputs)
        tokens = self.reading.encode([texts], names=[sample.name])
        found: Encoded = {"ids": tokens.ids, "kinds": tokens.kinds}
        if sample.target is not None:
            found["target"] = torch.as_tensor(sample.target)
        return found

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Collate texts to padded rows."""
        lengths = torch.tensor([len(sample["ids"]) for sample in samples])
        ids, kinds = (torch.cat([sample[name] for sample in samples]) for name in ("ids", "kinds"))
        tokens = Tokens(ids, kinds, lengths.cumsum(0) - lengths, lengths)
        width = self.reading.width(int(lengths.max()))
        batch = tokens.rows(torch.arange(len(samples)), width, pad=self.reading.pad, kinds=self.reading.kinds)
        if "target" in samples[0]:
            batch["target"] = torch.stack([sample["target"] for sample in samples])
        return batch


def _encode(made: Any, texts: Sequence[tuple[str, ...]]) -> list[Any]:
    """Tokenize texts; failures of the tokenizer, which may be untrusted, become readable errors."""
    try:
        found: list[Any] = []
        for first in range(0, len(texts), MANY):
            if len(texts) > MANY:
                tell(f"tokenizing texts {first + 1:,} to {min(first + MANY, len(texts)):,} of {len(texts):,} ...")
            found += made.encode_batch([one[0] if len(one) == 1 else one for one in texts[first : first + MANY]])
    except BaseException as error:  # the library raises Exception, and panics on endless patterns
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TextError(
            f"the tokenizer fails on these texts ({str(error)[:200]}); use the model's own tokenizer"
        ) from None
    if any(not 0 <= max(one.ids, default=0) < 2**31 or max(one.type_ids, default=0) > 255 for one in found):
        raise TextError(
            "the tokenizer returns token ids that are out of range for any model; use the model's own tokenizer"
        )
    return found


def _growth(part: Any) -> int:
    """Return the factor by which serialised normalizers or pre-tokenizers can lengthen a text."""
    if isinstance(part, list):
        return math.prod(_growth(one) for one in part)
    if not isinstance(part, dict):
        return 1
    kind, content = part.get("type"), str(part.get("content", part.get("prepend", "")))
    if kind == "Sequence":
        return _growth(part.get("normalizers", part.get("pretokenizers", [])))
    if kind in ("Replace", "Prepend"):
        pattern = part.get("pattern")
        fixed = pattern.get("String") if isinstance(pattern, dict) else None
        return max(-(-len(content) // len(fixed)), 1) if fixed else len(content) + 1
    return GROWS.get(str(kind), 2)


@lru_cache(maxsize=8)
def open_tokenizer(text: str, *, limit: int | None = None, cut_left: bool = False) -> Any:
    """Load a serialised tokenizer; with a limit, one that truncates the end or the start of texts."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError(f"texts need {error.name}; install it with pip install 'saccade[hf]'") from None
    try:
        made = Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception
        raise ValueError(f"the tokenizer cannot be read: {str(error)[:200]}") from None
    parts = [part.__getstate__() for part in (made.normalizer, made.pre_tokenizer) if part is not None]
    if _growth([json.loads(part) for part in parts]) > GROWTH:
        raise ValueError(f"the tokenizer makes texts more than {GROWTH} times as long; use the model's own tokenizer")
    made.no_padding()
    made.no_truncation()
    if limit is not None:
        made.enable_truncation(limit, direction="left" if cut_left else "right")
    return made
