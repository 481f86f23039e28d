"""The training loop: epochs, validation, and a saved state to resume from any step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from ..building.freezing import freeze_mode
from ..data.feed import Batch
from ..data.image import count_bad
from ..data.loader import check_bad
from ..runs.run import Run
from ..runs.state import piece_of, save_state
from ..runs.weights import save_model
from ..settings import TrainConfig
from ..support.wording import count_of
from ..tasks import Metrics
from .allowance import Allowance, DeadlineExceeded
from .console import Board, Console
from .engine import turn_onednn_on
from .lifecycle import on_signal
from .optim import warmup_of
from .optimizer_state import optimizer_state
from .parallel import World, full_state_dict, summon_full_params, whole
from .restore import RestorableStep
from .setup import TrainingParts
from .time_limit import TimeLimit, whole_epochs
from .validate import predict_shown, validate

Weights = tuple[dict[str, Tensor], dict[str, int]]  # by name; and the step, epoch and total epochs
CHECK_EVERY = 10  # steps between checks that wait for the device or other processes


class TrainingError(RuntimeError):
    """Training failed; the run can be resumed."""


class Interrupted(Exception):  # noqa: N818
    """The run was stopped by a signal and has saved its state."""

    def __init__(self, number: int, run: Path) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.run = number, run


class Loop(RestorableStep):
    """A training run."""

    now = staticmethod(monotonic)  # the clock of everything that depends on time

    def __init__(
        self,
        config: TrainConfig,
        run: Run,
        parts: TrainingParts,
        *,
        world: World,
        device: torch.device,
        console: Console,
    ) -> None:
        super().__init__(config, parts, world=world, device=device)
        self.run, self.console = run, console
        self.epoch = 0  # finished epochs
        self.primary = parts.primary
        self.best: float | None = None
        self.stale = 0
        self.saved_at, self.seconds = self.now(), 0.0
        self.stop_signal: int | None = None
        self.limit: TimeLimit | None = None  # of a run with a time budget
        self.allowance: Allowance | None = None  # of a run within a comparison
        self.epoch_ends: list[float] = []  # end of each epoch trained by this process
        self.board: Board | None = None
        self.measured: Metrics | None = None  # result of the last validation, until the weights change
        self.unwritten: Weights | None = None  # weights of the best validation, not yet on disk
        self.earlier_kernels: list[str] = []  # kernels used before the run was resumed

    def fit(self) -> dict[str, Any]:
        """Train to the end; return the last record."""
        if self.config.keep.tensorboard and self.world.is_main:
            self.board = Board(self.run.path, epoch=self.epoch)
        record: dict[str, Any] = {}
        if self.step == 0:
            self.save()  # from now on there is a state to resume
        with on_signal(self._request_stop):
            while not self.ended():
                self._train_epoch()
                record = self._close_epoch()
        if record and self._stale():
            tried = count_of(self.config.schedule.patience or 0, "validation")
            self.console.say(f"stopping early: no better {self.primary.words} in {tried}")
        return record or (self.run.metrics() or [{}])[-1]

    def ended(self) -> bool:
        """Whether training is finished."""
        return self.epoch >= self.length.epochs or self._stale()

    def _train_epoch(self) -> None:
        self.task.train()
        freeze_mode(self.task.model, statistics=self.config.model.keep_statistics)
        total_epochs = self.config.schedule.epochs
        self.task.set_epoch(self.length.epoch_at(self.epoch * self.feed.steps), total_epochs)
        weak = (total_epochs - self.config.augment.off_epochs) * self.feed.steps  # from this position on
        first = self.step - self.epoch * self.feed.steps
        started = self.now() - self.seconds
        self.console.begin_epoch(self.epoch, first, self.feed.steps)
        for batch in self.feed.epoch(self.epoch, start=first):
            if self.step >= self.length.total:
                break
            self.measured = None
            self._train_step(batch, strong=self.length.place(self.step) < weak)
            self.seconds = self.now() - started
            self.console.advance(self.totals)
            self._checkpoint_or_stop()
        self.seconds = self.now() - started  # the last step has been waited for

    def _checkpoint_or_stop(self) -> None:
        """Save if due, stop on a signal, raise on a non-finite loss."""
        every = self.config.keep.every_steps
        save_due = every is not None and self.step % every == 0
        wait = self.device.type == "cpu" and self.world.size == 1
        if wait or save_due or self.step % CHECK_EVERY == 0 or self.step == self.length.end_of(self.epoch):
            broken = not bool(torch.isfinite(self.totals[0]))
            late = self._save_overdue() and self.world.is_main
            left = self._steps_left() if self.world.is_main else None
            flags = broken, self.stop_signal is not None, late, left is not None
            broken, stop, late, shorten = self.world.any_of(*flags)
            if broken:
                raise TrainingError(self._non_finite("the loss"))
            if shorten:
                self._shorten(self.world.gather(left)[0])
            if save_due or stop or late or shorten:
                self.save()
            if stop:
                raise Interrupted(self.stop_signal or signal.SIGTERM, self.run.path)

    def _steps_left(self) -> int | None:
        """Return the number of steps that fit into the time budget; None if all do."""
        if self.limit is None:
            return None
        steps, every = self.feed.steps, self.config.keep.evaluate_every

        def validations(end: int) -> int:
            epochs = -(-end // steps)
            return epochs // every - self.epoch // every + (epochs % every > 0)

        left = self.limit.steps_left(now=self.now(), step=self.step, total=self.length.total, validations=validations)
        return None if left is None else whole_epochs(self.step, left, steps)

    def _shorten(self, left: int) -> None:
        """Shorten the rest of the schedule to `left` steps."""
        before, warmup = self.length, warmup_of(self.config.schedule, self.feed.steps)
        self.length = before.shortened(self.step, left, warmup=warmup)
        self.console.shorten(self.length)
        self.console.say(
            f"steps are slower than estimated: shortened to {self.length} instead of {before}, from epoch "
            f"{before.epoch_of(self.step)} on; the learning rate decays to its minimum within the time budget"
        )

    def _non_finite(self, what: str) -> str:
        rate = self._rate(max(self.step - 1, 0))
        where = f"step {self.step} (epoch {self.epoch + 1}, learning rate {rate:.2e}, {self.config.engine.precision})"
        return (
            f"{what} is not a finite number at {where}. The state before it is kept; lower optim.lr, set optim.clip=1, "
            "or use engine.precision=float32, in a new run or by "
            f"saccade train --resume {self.run.path} --set NAME=VALUE"
        )

    def _close_epoch(self) -> dict[str, Any]:
        """Validate and write the epoch's record."""
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
        last = self.epoch == self.length.epochs
        if last or self.epoch % self.config.keep.evaluate_every == 0:
            started = self.now()
            self.measured = self.evaluate()
            if self.limit is not None:
                now = self.now()
                self.limit.validated(now - started, now=now, step=self.step)
            record |= {f"val_{name}": value for name, value in self.measured.compute().items()}
            self.measured.calibrate()
            self._update_best(record[f"val_{self.primary.name}"])
        self.world.merge_from_ranks(self.feed.bad)
        record |= {"images_per_second": count / max(self.seconds, 1e-9), "seconds": self.seconds}
        record["bad_samples"] = count_bad(self.feed.bad) + count_bad(self.parts.validation.bad)
        if self.length.was_shortened(self.step):
            record["shortened_to"] = self.length.epochs
        self.seconds = 0.0
        if self.world.is_main:
            self.run.append(record)
            if self.board is not None:
                self.board.add(record)
        self.console.end_epoch(record)
        now = self.now()
        late = self.config.keep.every_steps is None and self._save_overdue()
        if self.ended() or self.world.any_rank(late and self.world.is_main):
            self.save()
        self.epoch_ends.append(now)
        if self.allowance is not None and not self.ended():
            left = self.length.epochs - self.epoch
            try:
                self.allowance.check(now=now, second=self.epoch_ends[0], epochs=len(self.epoch_ends), left=left)
            except DeadlineExceeded:
                self.save()
                raise
        return record

    def _update_best(self, value: float) -> None:
        """Keep the weights if a validation is the best so far."""
        larger = self.primary.larger_is_better
        better = self.best is None or (value > self.best if larger else value < self.best)
        self.best, self.stale = (value, 0) if better else (self.best, self.stale + 1)
        if better:
            self._keep_best()

    def _keep_best(self) -> None:
        """Copy the current weights; they are written with the next state, since epochs may be short."""
        weights, unfinished = self._weights()
        if self.world.is_main:
            self.unwritten = {name: value.clone() for name, value in weights.items()}, unfinished

    def _save_overdue(self) -> bool:
        """Whether the last saved state is older than `keep.every_seconds`."""
        return self.now() - self.saved_at > self.config.keep.every_seconds

    def evaluate(self) -> Metrics:
        """Evaluate the validation samples, with the averaged weights if there are any."""
        validation = self.parts.validation
        # Buffers such as running means are taken from the first process.
        self.world.broadcast(self.task.buffers())
        with self._validating():

            def work() -> Metrics:
                return validate(self.task, validation, self.feed.expanding, self.world)

            measured = work() if self.world.size > 1 else self.guard.run(work, kind="validation")
        check_bad(validation.bad, self.config.data.bad_limit * len(validation.source), of=len(validation.source))
        return measured

    def predictions(self, measured: Metrics) -> dict[str, Tensor]:
        """Return a validation's predictions for pages; all processes call this."""

        def answer(batch: Batch) -> dict[str, Tensor]:
            on_device = {name: part.to(self.device) for name, part in batch.items()}
            return self.task.answer(self.feed.expanding.plain(on_device))

        with self._validating():
            return predict_shown(self.task, measured, self.parts.data.val, answer)

    @contextmanager
    def _validating(self) -> Iterator[None]:
        turn_onednn_on()
        with (
            self.average.in_place() if self.average is not None else nullcontext(),
            summon_full_params(self.task) if self.sharded else nullcontext(),
            self._autocast(),
        ):
            yield

    def _stale(self) -> bool:
        patience = self.config.schedule.patience
        return patience is not None and self.stale >= patience

    def _request_stop(self, number: int) -> None:
        self.stop_signal = number
        self.console.say("saving and stopping after this step ...")

    def kernels(self) -> dict[str, Any]:
        """Return the kernels used, and why kernels were disabled if they failed."""
        names = sorted({*self.earlier_kernels, *self.guard.names})
        return {"kernels": names, **({"kernels_failed": self.guard.failure} if self.guard.failure else {})}

    def trained(self) -> dict[str, Any]:
        """Return the run's length, and the planned one if it was shortened."""
        return {"epochs": self.epoch, "steps": self.step, **self.length.summary()}

    # The state

    def save(self) -> None:
        """Save the state; non-finite weights are refused."""
        self._refuse_non_finite()
        self.world.merge_from_ranks(self.feed.bad)
        tensors: dict[str, Tensor] = {f"task.{name}": v for name, v in self.task.state_dict().items()}
        kept, memory = optimizer_state(self.optimizer, self.names, self.initial_param_groups)
        tensors |= {f"optim.{name}": v for name, v in kept.items()}
        if self.average is not None:
            tensors |= {f"average.{name}": v for name, v in self.average.tensors().items()}
        tensors["totals"] = self.world.total(self.totals)
        record = {
            "step": self.step,
            "epoch": self.epoch,
            "seconds": self.seconds,
            "length": self.length.record(),
            "best": self.best,
            "stale": self.stale,
            "scaler": self.scaler.state_dict(),
            "bad": self.feed.bad,
            "bad_validation": self.parts.validation.bad,
            "optimizer": memory,
            "data": self.parts.identity,
            "kernels": self.kernels()["kernels"],
        }
        if self.unwritten is not None:
            self._write_weights(self.run.best_weights, self.unwritten)
            self.unwritten = None
        if self.world.is_main:
            self.run.fsync_metrics()
        folder, keep = self.run.states, self.config.keep.states
        save_state(folder, self.step, tensors, record, keep=keep, world=self.world)
        if self.step:
            self._write_weights(self.run.last_weights, self._weights())
        self.saved_at = self.now()

    def _refuse_non_finite(self) -> None:
        sound = torch.stack([piece_of(p.detach())[0].isfinite().all() for p in self.task.parameters()]).all()
        if self.world.any_rank(not bool(sound)):
            raise TrainingError(self._non_finite("a weight"))

    def unreadable(self) -> dict[str, str]:
        """Return the reasons for unreadable samples, by name."""
        return {name: fault.reason for name, fault in (self.feed.bad | self.parts.validation.bad).items()}

    def weights(self) -> dict[str, Tensor]:
        """Return the model's full weights, averaged if there is an average; all processes call this."""
        weights = dict(full_state_dict(self.task.model))
        if self.average is not None:
            weights |= {name: whole(value) for name, value in self.average.tensors().items()}
        return weights

    def _weights(self) -> Weights:
        """Return the weights and their training progress."""
        return self.weights(), {"step": self.step, "epoch": self.epoch, "epochs": self.length.epochs}

    def _write_weights(self, path: Path, kept: Weights) -> None:
        """Write the weights of an unfinished run."""
        if self.world.is_main:
            weights, unfinished = kept
            save_model(path, weights, self.config.model, self.parts.spec, unfinished=unfinished)
