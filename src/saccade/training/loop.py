"""The training loop: every step a function of the settings and the step's number, so that it can stop anywhere."""

import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import ConfigError, TrainConfig
from ..data.draws import generator, seed_of
from ..data.feed import Batch
from ..data.loader import check_bad
from ..data.order import part
from ..data.picture import count_bad
from ..runs import Run
from ..tasks import Metrics, Task
from ..tasks.task import part_of, samples_in
from .average import Average
from .board import Board
from .compilation import compile_parts
from .console import Console
from .graphs import Replay
from .identity import differences
from .moments import check_storable, group_settings, moments_of, put_back
from .optim import build_optimizer, rate_at, scaled_lr, set_rate
from .parallel import ShardedAverage, World, copy_over, fill, held_whole, piece_of, shard
from .setup import Parts
from .signals import on_signal
from .state import State, StateError, save_state, set_aside
from .surroundings import turn_onednn_on
from .validate import validate

NOISE, DRAWS = 0x4015E, 0xD4A5  # keep the draws of layers and of tasks apart from others
CHECK_EVERY = 10  # steps between looks at what costs a wait for the device or for other processes


class TrainingError(RuntimeError):
    """Training cannot go on; the run can be resumed."""


class Interrupted(Exception):  # noqa: N818
    """The run was told to stop and has saved its state."""

    def __init__(self, number: int, run: Path) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.run = number, run


class Loop:
    """A run under way.

    Args:
        config: resolved settings.
        run: where it is kept.
        parts: what it works with.
        world: the processes it runs in.
        device: of this process.
        console: what it tells the user.
    """

    def __init__(
        self, config: TrainConfig, run: Run, parts: Parts, *, world: World, device: torch.device, console: Console
    ) -> None:
        self.config, self.run, self.parts = config, run, parts
        self.world, self.device, self.console = world, device, console
        self.feed, self.task = parts.feed, parts.task
        engine = config.engine
        self.dtype = getattr(torch, engine.precision)
        fp16 = self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.type, enabled=fp16)
        self.graphs = self._may_capture() if engine.graphs is None else engine.graphs and device.type == "cuda"
        self.everyone = self._batch_size()
        self.sharded = world.size > 1 and engine.parallel == "fsdp"
        if self.sharded:
            shard(self.task, device, world.size)
        self.called: nn.Module = self.task
        self.joined = world.size == 1 or self.sharded
        if engine.compile and self.joined:
            self.called = compile_parts(self.called)
        self.optimizer = build_optimizer(self.task, config.optim, device=device, capturable=self.graphs)
        check_storable(self.optimizer, config.optim.name)
        self.begun = group_settings(self.optimizer)
        averaging = ShardedAverage if self.sharded else Average
        self.average = averaging(self.task.model, config.keep.ema) if config.keep.ema else None
        self.names = {id(p): name for name, p in self.task.named_parameters()}
        kinds = 2 + len(self.task.running)  # loss, what the task follows, samples
        self.totals = torch.zeros(kinds, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        self.step = self.epoch = 0  # of the whole run; finished epochs
        self.primary = parts.primary
        self.best: float | None = None
        self.stale = 0
        self.saved_at, self.seconds = time.monotonic(), 0.0
        self.told_to_stop: int | None = None
        self.board: Board | None = None
        self.measured: Metrics | None = None  # of the last validation, until a step changes the weights
        self.replays = {strong: Replay(self._captured(strong)) for strong in (True, False)}

    def _may_capture(self) -> bool:
        simple = self.world.size == 1 and self.dtype != torch.float16
        return self.device.type == "cuda" and simple and self.config.optim.name in ("adam", "adamw", "sgd")

    def _batch_size(self) -> int:
        """Return how many pictures all processes take in a step; a set may be smaller than a batch."""
        order = self.feed.order
        size = self.config.optim.batch_size
        size = size if order is None else min(size, order.length)
        if size < 2 * self.world.size and self.world.size > 1:
            raise ConfigError(
                f"a batch of {size} pictures was asked for in {self.world.size} processes; each takes whole pairs, so "
                f"give optim.batch_size = {2 * self.world.size} or more, or fewer processes"
            )
        return size

    # The steps

    def fit(self) -> dict[str, Any]:
        """Train to the end; return the last record."""
        if self.config.keep.tensorboard and self.world.leads:
            self.board = Board(self.run.path, epoch=self.epoch)
        record: dict[str, Any] = {}
        if self.step == 0:
            self.save()  # whatever happens, there is something to resume
        with on_signal(self._wish_to_stop):
            while not self.ended():
                self._train_epoch()
                record = self._close_epoch()
        if record and self._stale():
            patience = self.config.schedule.patience
            self.console.say(f"no better {self.primary.words} in {patience} validations: stopping early")
        return record or (self.run.metrics() or [{}])[-1]

    def ended(self) -> bool:
        """Whether there is nothing left to train."""
        return self.epoch >= self.config.schedule.epochs or self._stale()

    def _train_epoch(self) -> None:
        self.task.train()
        self.task.set_epoch(self.epoch, self.config.schedule.epochs)
        strong = self.epoch < self.config.schedule.epochs - self.config.augment.off_epochs
        first = self.step - self.epoch * self.feed.steps
        begun = time.monotonic() - self.seconds
        self.console.begin_epoch(self.epoch, first, self.feed.steps)
        for batch in self.feed.epoch(self.epoch, start=first):
            self._prepare()
            size = samples_in(batch)
            draws = self._draws(size)
            if self.graphs and size == self.config.optim.batch_size:
                self.replays[strong]([*batch.values(), *(tensor for draw in draws for tensor in draw.values())])
            else:
                self._step(batch, draws, strong=strong)
            self.step += 1
            self.seconds = time.monotonic() - begun
            self.console.advance(self.totals)
            self._look_up()

    def _prepare(self) -> None:
        """Set what depends on the step's number alone."""
        turn_onednn_on()
        self.measured = None
        set_rate(self.optimizer, self._rate(self.step))
        if self.average is not None:
            self.average.prepare(self.step)
        torch.manual_seed(seed_of(self.config.seed, self.step, self.world.rank, NOISE))

    def _rate(self, step: int) -> float:
        peak, steps = scaled_lr(self.config.optim), self.feed.steps
        return rate_at(step, steps_per_epoch=steps, peak=peak, schedule=self.config.schedule)

    def _chunks(self, length: int) -> list[slice]:
        # as many in every process, since sharded weights come together in each of them
        smallest = length if self.world.size == 1 else self.everyone // self.world.size
        count = min(self.config.optim.accumulate, max(smallest // 2, 1))
        return [part(length, index, count) for index in range(count)]

    def _draws(self, length: int) -> list[dict[str, Tensor]]:
        """Draw what the task needs for each part of a batch."""
        if type(self.task).draw is Task.draw:
            return [{} for _ in self._chunks(length)]
        source = generator(self.config.seed, self.step, self.world.rank, DRAWS, device=self.device)
        sizes = [chunk.stop - chunk.start for chunk in self._chunks(length)]
        return [self.task.draw(size, device=self.device, generator=source) for size in sizes]

    def _captured(self, strong: bool) -> Any:
        """Return the step over flat tensors, as a graph wants it."""
        names = list(self._draws(2)[0])

        def step(*tensors: Tensor) -> None:
            rest = iter(tensors)
            batch = {name: next(rest) for name in self.feed.names}
            draws = [{name: next(rest) for name in names} for _ in self._chunks(samples_in(batch))]
            self._step(batch, draws, strong=strong)

        return step

    def _step(self, batch: Batch, draws: list[dict[str, Tensor]], *, strong: bool) -> None:
        """Run one batch forward and backward in parts, and change the weights."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.feed.expand(batch, strong=strong)
        if self.config.engine.channels_last and self.device.type == "cuda":
            batch = {name: _channels_last(value) for name, value in batch.items()}
        size = samples_in(batch)
        # Each process averages over its own part; gradients are then averaged over processes as if parts were equal.
        everyone = self.everyone if self.world.size > 1 else size
        if not self.joined:
            self._join(part_of(batch, slice(2)))
        chunks = self._chunks(size)
        parted = len(chunks) > 1 or self.world.size > 1
        weight = self._mean_weight(batch, everyone) if parted else None
        for number, (chunk, draw) in enumerate(zip(chunks, draws, strict=True)):
            share = (chunk.stop - chunk.start) * self.world.size / everyone
            mine = part_of(batch, chunk)
            with self._together(last=number == len(chunks) - 1), self._autocast():
                result = self.task.reweigh(self.called(mine, **draw), mine, weight)
                loss = result["loss"] * share
                self.scaler.scale(loss).backward()
            self._count(result, mine)
        if self.config.optim.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.task.parameters(), self.config.optim.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()

    def _mean_weight(self, batch: Batch, everyone: int) -> Tensor | None:
        """Return the mean weight of a batch's samples over all processes; None where each counts as one."""
        weight = self.task.weight_of(batch)
        return None if weight is None else self.world.total(weight) / everyone

    def _join(self, batch: Batch) -> None:
        """Tie the copies of the task together, when there are samples to try it on."""

        def probe(task: nn.Module) -> None:
            source = generator(self.config.seed, DRAWS, device=self.device)
            draw = self.task.draw(samples_in(batch), device=self.device, generator=source)
            with self._autocast():
                task(batch, **draw)["loss"].backward()

        self.called, self.joined = copy_over(self.task, self.world, device=self.device, probe=probe), True
        if self.config.engine.compile:
            self.called = compile_parts(self.called)

    @torch.no_grad()
    def _count(self, result: dict[str, Tensor], batch: Batch) -> None:
        size = samples_in(batch)
        loss = result["loss"].detach().double() * size
        followed = [value.double() for value in self.task.follow(result, batch)]
        self.totals += torch.stack([loss, *followed, torch.full_like(loss, size)]).to(self.totals)

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def _together(self, *, last: bool) -> Any:
        """Wait with joining gradients until the last part of a batch."""
        no_sync = getattr(self.called, "no_sync", None)
        return nullcontext() if last or no_sync is None else no_sync()

    # Between the steps

    def _look_up(self) -> None:
        """Save if it is time, stop if told to, refuse to go on with numbers that are none."""
        every = self.config.keep.every_steps
        due = every is not None and self.step % every == 0
        wait = self.device.type == "cpu" and self.world.size == 1
        if wait or due or self.step % CHECK_EVERY == 0 or self.step % self.feed.steps == 0:
            broken = not bool(torch.isfinite(self.totals[0]))
            late = self._late() and self.world.leads
            broken, stop, late = self.world.any_of(broken, self.told_to_stop is not None, late)
            if broken:
                raise TrainingError(self._not_finite("the loss"))
            if due or stop or late:
                self.save()
            if stop:
                raise Interrupted(self.told_to_stop or signal.SIGTERM, self.run.path)

    def _not_finite(self, what: str) -> str:
        rate = self._rate(max(self.step - 1, 0))
        where = f"step {self.step} (epoch {self.epoch + 1}, learning rate {rate:.2e}, {self.config.engine.precision})"
        return (
            f"{what} is not a finite number at {where}. The state before it is kept; lower optim.lr, set optim.clip=1, "
            "or use engine.precision=float32, in a new run or by "
            f"saccade train --resume {self.run.path} --set NAME=VALUE"
        )

    def _close_epoch(self) -> dict[str, Any]:
        """Validate, write the epoch's record and its state."""
        loss, *followed, count = self.world.total(self.totals).tolist()
        self.totals.zero_()
        self.epoch += 1
        record: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "lr": self._rate(self.step - 1),
            "train_loss": loss / count,
            **{f"train_{name}": value / count for name, value in zip(self.task.running, followed, strict=True)},
        }
        last = self.epoch == self.config.schedule.epochs
        if last or self.epoch % self.config.keep.evaluate_every == 0:
            self.measured = self.evaluate()
            record |= {f"val_{name}": value for name, value in self.measured.compute().items()}
            self._judge(record[f"val_{self.primary.name}"])
        self.world.unite(self.feed.bad)
        record |= {"images_per_second": count / max(self.seconds, 1e-9), "seconds": self.seconds}
        record["bad_pictures"] = count_bad(self.feed.bad) + count_bad(self.parts.validation.bad)
        self.seconds = 0.0
        if self.world.leads:
            self.run.append(record)
            if self.board is not None:
                self.board.add(record)
        self.console.end_epoch(record)
        late = self.config.keep.every_steps is None and self._late()
        if self.ended() or self.world.agree(late and self.world.leads):
            self.save()
        return record

    def _judge(self, value: float) -> None:
        """Take note of whether a validation was better than all before."""
        larger = self.primary.larger_is_better
        better = self.best is None or (value > self.best if larger else value < self.best)
        self.best, self.stale = (value, 0) if better else (self.best, self.stale + 1)

    def _late(self) -> bool:
        """Whether the last state is so old that losing what came after would hurt."""
        return time.monotonic() - self.saved_at > self.config.keep.every_seconds

    def evaluate(self) -> Metrics:
        """Return what is measured on the validation samples, of the averaged weights if there are any."""
        validation = self.parts.validation
        turn_onednn_on()
        # What a process measured on its own samples, such as running means, is kept of the first one only.
        self.world.follow(self.task.buffers())
        with (
            self.average.in_place() if self.average is not None else nullcontext(),
            held_whole(self.task) if self.sharded else nullcontext(),
            self._autocast(),
        ):
            measured = validate(self.task, validation, self.feed.expanding, self.world)
        check_bad(validation.bad, self.config.data.bad_limit * len(validation.source), of=len(validation.source))
        return measured

    def _stale(self) -> bool:
        patience = self.config.schedule.patience
        return patience is not None and self.stale >= patience

    def _wish_to_stop(self, number: int) -> None:
        self.told_to_stop = number
        self.console.say("saving and stopping after this step ...")

    # The state

    def save(self) -> None:
        """Write the state; weights that are no numbers are refused."""
        sound = torch.stack([piece_of(p.detach())[0].isfinite().all() for p in self.task.parameters()]).all()
        if self.world.agree(not bool(sound)):
            raise TrainingError(self._not_finite("a weight"))
        self.world.unite(self.feed.bad)
        tensors: dict[str, Tensor] = {f"task.{name}": v for name, v in self.task.state_dict().items()}
        moments, memory = moments_of(self.optimizer, self.names, self.begun)
        tensors |= {f"optim.{name}": v for name, v in moments.items()}
        if self.average is not None:
            tensors |= {f"average.{name}": v for name, v in self.average.tensors().items()}
        tensors["totals"] = self.world.total(self.totals)
        record = {
            "step": self.step,
            "epoch": self.epoch,
            "seconds": self.seconds,
            "best": self.best,
            "stale": self.stale,
            "scaler": self.scaler.state_dict(),
            "bad": self.feed.bad,
            "bad_validation": self.parts.validation.bad,
            "optimizer": memory,
            "data": self.parts.identity,
        }
        folder, keep = self.run.states, self.config.keep.states
        save_state(folder, self.step, tensors, record, keep=keep, world=self.world)
        self.saved_at = time.monotonic()

    def restore(self, state: State) -> None:
        """Go back to where a state was written; an empty one is the start."""
        if len(set(self.world.gather(state.record.get("step")))) > 1:
            raise StateError(f"the processes found different states in {self.run.states}; they need one common disk")
        if self.world.leads:
            set_aside(state.passed)
        if not state.record:
            self._refuse_to_lose()
            return
        self._refuse_other_pictures(state.record["data"])
        for name, value in self.task.state_dict().items():
            fill(value, state.tensors[f"task.{name}"])
        moments = {name[6:]: v for name, v in state.tensors.items() if name.startswith("optim.")}
        counts_on = self.device if self.graphs or self.config.optim.name in ("adam", "adamw") else None
        put_back(self.optimizer, self.names, moments, state.record["optimizer"], counts_on=counts_on)
        if self.average is not None:
            for name, value in self.average.tensors().items():
                fill(value, state.tensors[f"average.{name}"])
        record = state.record
        self.step, self.epoch, self.seconds = record["step"], record["epoch"], record["seconds"]
        # Earlier versions began with a score below any.
        self.best = None if record["best"] == -1.0 else record["best"]
        self.stale = record["stale"]
        if record["scaler"] and self.scaler.is_enabled():  # only where both are in half precision
            self.scaler.load_state_dict(record["scaler"])
        self.feed.bad.update(record["bad"])
        self.parts.validation.bad.update(record["bad_validation"])
        if self.world.leads:
            self.totals.copy_(state.tensors["totals"])
            self.run.forget_after(self.epoch)

    def _refuse_other_pictures(self, begun: dict[str, Any]) -> None:
        told = differences(begun, self.parts.identity)
        if told:
            raise StateError(
                f"the pictures are not those that {self.run.path} was begun with: {'; '.join(told)}. Put them back as "
                "they were (--set data.path=... if they lie elsewhere now), or begin another run; it can start from "
                f"this one's weights if it has come to its end: --set model.checkpoint={self.run.path}"
            )

    def _refuse_to_lose(self) -> None:
        if self.run.metrics() or self.run.finished():
            raise StateError(
                f"{self.run.states} holds no state though {self.run.path} has trained; it cannot go on. Begin another "
                "run, or replace this one by --overwrite"
            )


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
