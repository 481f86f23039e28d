"""Batches of texts of similar length, in an order determined by seed and epoch."""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from ...data.draws import GroupOrder
from ...data.feed import Batch, Expand, Feed, sample_keys
from ...data.validation import Validation
from .data import TextSource
from .tokens import Reading, Tokens


class TokenFeed(Feed):
    """Feed of tokenized texts on the device."""

    def __init__(
        self,
        tokens: Tokens,
        targets: Tensor,
        *,
        order: GroupOrder,
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
