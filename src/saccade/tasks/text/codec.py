"""Codec of texts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data.draws import GroupOrder
from ...data.feed import Batch, Expand, Feed
from ...data.framing import Encoder
from ...data.source import Source, Stream
from ...data.validation import Validation
from ...settings import AugmentConfig, LossConfig, TrainConfig
from ..classification.codec import ClassCodec
from .data import TextSource
from .feed import KeepTexts, TokenFeed, TokenValidation
from .tokens import INPUTS, Reading, TextEncoder


class TextCodec(ClassCodec):
    """Tokenizes texts."""

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return the encoder of texts."""
        return TextEncoder(Reading.of(self.spec))

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return the identity, since texts are not augmented."""
        return KeepTexts()

    def own_batches(
        self,
        train: Source | Stream,
        val: Source,
        config: TrainConfig,
        *,
        device: torch.device,
        rank: int,
        world: int,
    ) -> tuple[Feed, Validation]:
        """Tokenize all texts once, and return batches of similar length."""
        assert isinstance(train, TextSource)
        assert isinstance(val, TextSource)
        reading = Reading.of(self.spec)
        tokens, held = (
            reading.encode(part.texts, names=[part.name(index) for index in range(len(part))]) for part in (train, val)
        )
        widths = torch.tensor([reading.width(length) for length in tokens.lengths.tolist()])
        batch_size = config.optim.batch_size
        ranked: dict[str, Any] = {"rank": rank, "world": world}
        order = GroupOrder(length=len(train), batch_size=batch_size, seed=config.seed, groups=widths, **ranked)
        targets = torch.from_numpy(train.targets.rows)
        shared: dict[str, Any] = {"reading": reading, "device": device}
        feed = TokenFeed(tokens, targets, order=order, expand=KeepTexts(), **shared)
        longest = int(max(tokens.lengths.max(), held.lengths.max()))
        mean = float(tokens.lengths.double().mean())
        feed.notes = [
            f"{len(train):,} texts of {mean:.1f} tokens on average, {longest} at most, {mean * batch_size:,.0f} a batch"
        ]
        if tokens.cut or held.cut:
            feed.notes.append(f"cut to {reading.limit} tokens: {tokens.cut} training and {held.cut} validation texts")
        largest = max(batch_size, 256 if device.type == "cuda" else 32)
        return feed, TokenValidation(val, held, batch_size=largest, **shared, **ranked)

    @staticmethod
    def ask(model: nn.Module, batch: Batch) -> Any:
        """Run a model on texts."""
        return model(**{name: batch[name] for name in INPUTS if name in batch})

    def graph_inputs(self) -> tuple[str, ...]:
        """Return token ids, attention mask and, if the model takes them, token types."""
        return INPUTS if Reading.of(self.spec).kinds else INPUTS[:2]

    def pack(self, batch: Batch) -> Tensor:
        """Pack the token rows of a batch, B, inputs, N."""
        return torch.stack([batch.pop(name) for name in self.graph_inputs()], dim=1)

    def unpack(self, packed: Tensor) -> Batch:
        """Unpack token rows by name."""
        return dict(zip(self.graph_inputs(), packed.unbind(1), strict=True))

    def stack(self, samples: Sequence[Tensor]) -> Tensor:
        """Stack texts, inputs, N each, padded to one width."""
        reading = Reading.of(self.spec)
        width = reading.width(max(sample.shape[1] for sample in samples))
        packed = torch.zeros(len(samples), samples[0].shape[0], width, dtype=torch.int64)
        packed[:, 0] = reading.pad
        for row, sample in zip(packed, samples, strict=True):
            row[:, : sample.shape[1]] = sample
        return packed

    def pack_text(self, texts: tuple[str, ...], *, name: str) -> Tensor:
        """Tokenize one or two texts to inputs, N; raises TextError for invalid texts."""
        reading = Reading.of(self.spec)
        tokens = reading.encode([texts], names=[name])
        rows = tokens.rows(torch.tensor([0]), len(tokens.ids), pad=reading.pad, kinds=reading.kinds)
        return self.pack(rows)[0]
