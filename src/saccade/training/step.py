"""One training step: forward, backward, optimizer."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..data.draws import derive_seed, generator, part
from ..data.feed import Batch, batch_length, slice_batch
from ..kernels import Guard, removed
from ..settings import ConfigError, TrainConfig
from ..tasks import Task
from .engine import Replay, compile_parts, turn_onednn_on
from .length import RunLength
from .optim import Average, build_optimizer, rate_at, scaled_lr, set_rate
from .optimizer_state import check_storable, group_settings
from .parallel import World, shard, wrap_ddp
from .setup import TrainingParts

NOISE, DRAWS = 0x4015E, 0xD4A5  # separate the random numbers of layers and of tasks from others


class Step:
    """Executes training steps: a step's result only depends on the settings and its number."""

    def __init__(self, config: TrainConfig, parts: TrainingParts, *, world: World, device: torch.device) -> None:
        self.config, self.parts, self.world, self.device = config, parts, world, device
        self.feed, self.task = parts.feed, parts.task
        engine = config.engine
        self.dtype = getattr(torch, engine.precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        self.graphs = bool(engine.graphs) and device.type == "cuda"
        self.global_batch_size = self._batch_size()
        # before sharding, which changes the modules' classes, and compilation
        self.guard = Guard(self.task, "train", engine.kernels, renew=self._recompile)
        self.sharded = world.size > 1 and engine.parallel == "fsdp"
        if self.sharded:
            shard(self.task, device, world.size)
        self.eager: nn.Module = self.task  # the module that a step calls, before compilation
        self.compiled: nn.Module = self.eager
        self.is_wrapped = world.size == 1 or self.sharded
        if self.is_wrapped:
            self._compile()
        self.optimizer = build_optimizer(self.task, config.optim, device=device, capturable=self.graphs)
        check_storable(self.optimizer, config.optim.name)
        self.initial_param_groups = group_settings(self.optimizer)
        self.average = Average(self.task.model, config.keep.ema) if config.keep.ema else None
        self.names = {id(p): name for name, p in self.task.named_parameters()}
        kinds = 2 + len(self.task.running)  # loss, running metrics, samples
        self.totals = torch.zeros(kinds, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        self.step = 0  # counted over the whole run
        schedule = config.schedule
        self.length = RunLength.of(schedule.epochs, self.feed.steps)
        self.new_only_steps = round(min(schedule.head_epochs, schedule.epochs / 3) * self.feed.steps)
        self.replays: dict[Any, Replay] = {}  # by augmentation and batch shapes

    def _batch_size(self) -> int:
        """Return the global batch size; the dataset may be smaller than a batch."""
        order = self.feed.order
        size = self.config.optim.batch_size
        size = size if order is None else min(size, order.length)
        if size < 2 * self.world.size and self.world.size > 1:
            raise ConfigError(
                f"a batch size of {size} was given for {self.world.size} processes; each process takes whole pairs "
                f"of samples, so give optim.batch_size = {2 * self.world.size} or more, or use fewer processes"
            )
        return size

    def _train_step(self, batch: Batch, *, strong: bool) -> None:
        """Train on a batch; if kernels fail in one of the first steps, they are disabled and the step is repeated."""
        if self.sharded:  # weights are gathered in each step, so that no process can try the kernels alone
            try:
                self._run_or_replay(batch, strong=strong)
            except Exception as error:
                if names := ", ".join(self.guard.names):
                    error.add_note(
                        f"the kernels {names} were in use; if one of them fails here, --kernels off (in Python "
                        "kernels='off') disables them"
                    )
                raise
        elif self.world.size > 1:  # `_wrap_ddp` has tried them: one process alone cannot repeat a step
            self._run_or_replay(batch, strong=strong)
        else:
            kind = (strong, *(value.shape for value in batch.values()))
            self.guard.run(lambda: self._run_or_replay(batch, strong=strong), changes=self._mutated, kind=kind)
        self.step += 1

    def _mutated(self) -> list[Tensor]:
        """Return the tensors that forward and backward change in place, besides gradients."""
        return [*self.task.buffers(), self.totals]

    def _run_or_replay(self, batch: Batch, *, strong: bool) -> None:
        """Train on a batch, replaying a CUDA graph if possible."""
        self._prepare()
        size = batch_length(batch)
        draws = self._draws(size)
        if self.graphs and size == self.config.optim.batch_size:
            self._replay(batch, strong)([*batch.values(), *(tensor for draw in draws for tensor in draw.values())])
        else:
            self._forward_backward(batch, draws, strong=strong)

    def _prepare(self) -> None:
        """Set the learning rate, the average's decay and the random seed of the step."""
        turn_onednn_on()
        set_rate(self.optimizer, self._rate(self.step), new_only=self.length.place(self.step) < self.new_only_steps)
        if self.average is not None:
            self.average.prepare(self.step)
        seed_all(derive_seed(self.config.seed, self.step, self.world.rank, NOISE), self.device)

    def _rate(self, step: int) -> float:
        peak, steps = scaled_lr(self.config.optim), self.feed.steps
        return rate_at(self.length.place(step), steps_per_epoch=steps, peak=peak, schedule=self.config.schedule)

    def _chunks(self, length: int) -> list[slice]:
        # the same number in every process, since sharded weights are gathered in each chunk
        smallest = length if self.world.size == 1 else self.global_batch_size // self.world.size
        count = min(self.config.optim.accumulate, max(smallest // 2, 1))
        return [part(length, index, count) for index in range(count)]

    def _draws(self, length: int) -> list[dict[str, Tensor]]:
        """Return the task's random draws for each chunk of a batch."""
        if type(self.task).draw is Task.draw:
            return [{} for _ in self._chunks(length)]
        source = generator(self.config.seed, self.step, self.world.rank, DRAWS, device=self.device)
        sizes = [chunk.stop - chunk.start for chunk in self._chunks(length)]
        return [self.task.draw(size, device=self.device, generator=source) for size in sizes]

    def _replay(self, batch: Batch, strong: bool) -> Replay:
        """Return the replayed step for batches of these shapes."""
        shapes = (strong, *(value.shape for value in batch.values()))
        if shapes not in self.replays:
            self.replays[shapes] = Replay(self._capturable_step(strong))
        return self.replays[shapes]

    def _capturable_step(self, strong: bool) -> Any:
        """Return the step as a function of flat tensors, which can be captured."""
        names = list(self._draws(2)[0])

        def step(*tensors: Tensor) -> None:
            rest = iter(tensors)
            batch = {name: next(rest) for name in self.feed.names}
            draws = [{name: next(rest) for name in names} for _ in self._chunks(batch_length(batch))]
            self._forward_backward(batch, draws, strong=strong)

        return step

    def _forward_backward(self, batch: Batch, draws: list[dict[str, Tensor]], *, strong: bool) -> None:
        """Run a batch forward and backward in chunks, and update the weights."""
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.feed.expand(batch, strong=strong)
        if self.config.engine.channels_last and self.device.type == "cuda":
            batch = {name: _channels_last(value) for name, value in batch.items()}
        size = batch_length(batch)
        # Each process averages over its own part; DDP averages gradients as if the parts were equal.
        global_size = self.global_batch_size if self.world.size > 1 else size
        if not self.is_wrapped:
            self._wrap_ddp(batch, draws)
        chunks = self._chunks(size)
        parted = len(chunks) > 1 or self.world.size > 1
        weight = self._mean_weight(batch, global_size) if parted else None
        for number, (chunk, draw) in enumerate(zip(chunks, draws, strict=True)):
            share = (chunk.stop - chunk.start) * self.world.size / global_size
            mine = slice_batch(batch, chunk)
            with self._no_sync(last=number == len(chunks) - 1), self._autocast():
                result = self.task.reweigh(self.compiled(mine, **draw), mine, weight)
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

    def _mean_weight(self, batch: Batch, global_size: int) -> Tensor | None:
        """Return the mean sample weight over all processes; None if samples are not weighted."""
        weight = self.task.weight_of(batch)
        return None if weight is None else self.world.total(weight) / global_size

    def _compile(self) -> None:
        """Compile the module if `engine.compile` is set."""
        if self.config.engine.compile:
            self.compiled = compile_parts(self.eager)

    def _recompile(self) -> None:
        """Compile again, and drop captured graphs."""
        self.replays.clear()
        self.compiled = self.eager
        self._compile()

    def _wrap_ddp(self, batch: Batch, draws: list[dict[str, Tensor]]) -> None:
        """Wrap the task in DDP at the first batch, which is used to find unused parameters."""

        def probe(task: nn.Module) -> None:
            source = generator(self.config.seed, DRAWS, device=self.device)
            few = slice_batch(batch, slice(2))
            draw = self.task.draw(batch_length(few), device=self.device, generator=source)
            with self._autocast(), removed(task):
                task(few, **draw)["loss"].backward()

        self.eager, self.is_wrapped = wrap_ddp(self.task, self.world, device=self.device, probe=probe), True
        self.compiled = self.eager
        self._compile()
        if self.guard.names:
            self._drop_failing_kernels(slice_batch(batch, self._chunks(batch_length(batch))[0]), draws[0])

    def _drop_failing_kernels(self, batch: Batch, draw: dict[str, Tensor]) -> None:
        """Run a chunk on each rank without communication; kernels that fail on any rank are disabled on all."""

        def work() -> None:
            with self._autocast():
                self.task(batch, **draw)["loss"].backward()

        kept = [(buffer, buffer.clone()) for buffer in self.task.buffers()]
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            failure = self.guard.failure_of(work)
        self.task.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
        failures = [one for one in self.world.gather(failure) if one]
        if failures:
            names = self.guard.leave_out(failures[0])
            if self.world.is_main:
                self.guard.warn(names)

    @torch.no_grad()
    def _count(self, result: dict[str, Tensor], batch: Batch) -> None:
        size = batch_length(batch)
        loss = result["loss"].detach().double() * size
        followed = [value.double() for value in self.task.follow(result, batch)]
        self.totals += torch.stack([loss, *followed, torch.full_like(loss, size)]).to(self.totals)

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def _no_sync(self, *, last: bool) -> Any:
        """Return DDP's `no_sync` context, except for the last chunk."""
        no_sync = getattr(self.compiled, "no_sync", None)
        return nullcontext() if last or no_sync is None else no_sync()


def seed_all(seed: int, device: torch.device) -> None:
    """Like `torch.manual_seed`, which takes up to a millisecond longer for unused devices."""
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    for source in torch.cuda.default_generators if device.type == "cuda" else ():
        source.manual_seed(seed)


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
