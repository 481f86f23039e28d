"""Batches of texts of similar length, in an order determined by seed and epoch."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from ...data.draws import ORDER, Order, generator
from ...data.feed import Batch, Expand, Feed, sample_keys
from ...data.validation import Validation
from .data import TextSource
from .tokens import Reading, Tokens

SHUFFLED = 0x7E87  # separates draws for the order of batches from that of texts


@dataclass(frozen=True, kw_only=True)
class LengthOrder(Order):
    """Sample indices of every batch: texts of equal width together, batches in random order.

    Dropped texts, the composition of batches, and their order are drawn anew each epoch.
    """

    widths: Tensor = field(compare=False)  # padded width of each text, N

    def epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the text at each position of an epoch; there are no repeats."""
        order = torch.randperm(self.length, generator=generator(self.seed, epoch, ORDER))
        used = min(self.steps * self.batch_size, self.length)
        order = order[:used]
        order = order[self.widths[order].argsort(stable=True)]
        if used > self.batch_size:
            batches = order.view(-1, self.batch_size)
            order = batches[torch.randperm(len(batches), generator=generator(self.seed, epoch, SHUFFLED))].flatten()
        return order, torch.zeros_like(order)


class TokenFeed(Feed):
    """Feed of tokenized texts on the device."""

    def __init__(
        self,
        tokens: Tokens,
        targets: Tensor,
        *,
        order: LengthOrder,
        reading: Reading,
        expand: Expand,
        device: torch.device,
    ) -> None:
        super().__init__(expand)
        self.lengths, self.tokens, self.targets = tokens.lengths, tokens.to(device), targets.to(device)
        self.order, self.reading, self.device, self.steps = order, reading, device, order.steps

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield token rows, targets and keys."""
        assert self.order is not None
        index, copies = self.order.epoch(epoch)
        keys = sample_keys(self.order.seed, epoch, index, copies)
        there, keys = index.to(self.device), keys.to(self.device)
        for places in self.order.batches(start=start):
            width = self.reading.width(int(self.lengths[index[places]].max()))
            rows = self.tokens.rows(there[places], width, pad=self.reading.pad, kinds=self.reading.kinds)
            yield self._named({**rows, "target": self.targets[there[places]], "key": keys[places]})


class TokenValidation(Validation):
    """Batches of validation texts, sorted by length, each once over all processes."""

    def __init__(
        self,
        source: TextSource,
        tokens: Tokens,
        *,
        reading: Reading,
        batch_size: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.source, self.batch_size, self.device, self.reading = source, batch_size, device, reading
        self.places = torch.arange(rank, len(source), world)
        self.places = self.places[tokens.lengths[self.places].argsort(stable=True)]
        self.lengths, self.tokens = tokens.lengths, tokens.to(device)
        self.rows = torch.from_numpy(source.targets.rows).to(device)
        self.bad, self.kept = {}, []

    def batches(self) -> Iterator[Batch]:
        """Yield batches on the device, with the texts' `place` in the source."""
        for places in self.places.split(self.batch_size):
            width = self.reading.width(int(self.lengths[places].max()))
            there = places.to(self.device)
            rows = self.tokens.rows(there, width, pad=self.reading.pad, kinds=self.reading.kinds)
            yield {**rows, "target": self.rows[there], "place": places}

    def ready(self) -> None:
        """Do nothing: tokens are in memory."""

    def close(self) -> None:
        """Do nothing: there are no workers."""


class KeepTexts:
    """The identity expansion of token batches."""

    def __call__(self, batch: Batch, *, strong: bool = True) -> Batch:
        """Return the batch with `truth`."""
        plain = self.plain({name: part for name, part in batch.items() if name != "key"})
        return {**plain, "truth": batch["target"]}

    def plain(self, batch: Batch) -> Batch:
        """Return the batch unchanged."""
        return batch

    def after_framing(self) -> Self:
        """Return itself."""
        return self
