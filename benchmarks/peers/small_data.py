"""Time training on few images end to end, against timm's own loader and loop: same model, data and augmentation.

    python benchmarks/peers/small_data.py  # the embedded set on the CPU
    python benchmarks/peers/small_data.py --data cifar100_a.npz --device cuda --batch-size 512 --peer-workers 8
    python benchmarks/peers/small_data.py --data FOLDER --img-size 64 --option patch_size=8 --batch-size 64

Both sides crop, flip, apply one operation of RandAugment, mix by mixup or cutmix, run forward, backward and AdamW, and
average weights. timm's side is what its training script does with these options: a dataset of PIL images (a folder's
files by `create_dataset`), `create_loader` (prefetching on a GPU), `Mixup`, autocast, `ModelEmaV3`; compiled where ours
is. Ours is what `saccade train` does. Each side runs in a process of its own, started as its command is: ours with what
`saccade` tells PyTorch's allocator, timm's with nothing. The sides take turns; images per second are those of whole
epochs after one to warm up, the median over rounds. What only the first epoch does (starting readers, decoding what is
kept) is in the warming up of both; its time is printed below the table.
"""

import argparse
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from timm.data import Mixup, create_dataset, create_loader
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

from saccade.building.build import build_model
from saccade.data.open import Data, open_data
from saccade.data.source import ArraySource, FileSource
from saccade.runs.run import Run
from saccade.settings import TrainConfig
from saccade.tasks.opening import choose_task
from saccade.training.console import Console
from saccade.training.engine import torch_settings
from saccade.training.loop import Loop
from saccade.training.parallel import Alone, local_device
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from saccade.training.setup import assemble, limit_samples

ALLOCATOR, KEPT = "MIMALLOC_PURGE_DELAY", "1000"  # what the command `saccade` sets, see `saccade.cli`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="a set of small images that opens as arrays, or a folder of files")
    parser.add_argument("--model", default="vit_tiny", help="a model's name, ours or timm's")
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of the model's constructor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--img-size", type=int, help="side of the images; that of arrays if not given")
    parser.add_argument("--crop", choices=("pad", "resized"), help="pad for arrays and resized for files, if not given")
    parser.add_argument("--images", type=int, default=2000, help="training images used, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compile", action="store_true", help="compile both sides' models")
    args = parser.parse_args()
    sides = {"saccade": Side(Ours, args), "timm": Side(Theirs, args)}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    first: dict[str, float] = {}
    for round_number in range(args.rounds + 1):
        for name, side in sides.items():
            images, spent = side.epoch(round_number)
            if round_number:
                speeds[name].append(images / spent)
            else:
                first[name] = spent
    for side in sides.values():
        side.close()
    print_table(args, speeds)
    print(f"\nFirst epoch: {', '.join(f'{name} {seconds:.1f} s' for name, seconds in first.items())}.")
    print(f"Load of the machine over the last minute: {os.getloadavg()[0]:.1f}.")


class Side:
    """One of the two loops in a process of its own, which waits while the other runs."""

    def __init__(self, kind: "type[Ours | Theirs]", args: argparse.Namespace) -> None:
        if kind is Ours:
            os.environ.setdefault(ALLOCATOR, KEPT)
        elif os.environ.get(ALLOCATOR) == KEPT:
            del os.environ[ALLOCATOR]
        spawn = multiprocessing.get_context("spawn")
        self.connection, other = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(kind, args, other))
        self.process.start()

    def epoch(self, number: int) -> tuple[int, float]:
        """Run an epoch; return its images and its seconds."""
        self.connection.send(number)
        return self.connection.recv()  # type: ignore[no-any-return]

    def close(self) -> None:
        self.connection.send(None)
        self.process.join()


def serve(kind: "type[Ours | Theirs]", args: argparse.Namespace, connection: Any) -> None:
    """Run epochs when asked to, in a process of its own."""
    config, data, spec, device = prepared(args)
    own = torch_settings(config, device) if kind is Ours else nullcontext()
    with tempfile.TemporaryDirectory() as folder, own:
        side = kind(config, data, spec, device, args, Path(folder))
        while (number := connection.recv()) is not None:
            begun = time.perf_counter()
            images = side.epoch(number)
            if device.type == "cuda":
                torch.cuda.synchronize()
            connection.send((images, time.perf_counter() - begun))
        side.close()


def prepared(args: argparse.Namespace) -> tuple[TrainConfig, Data, Any, torch.device]:
    """Open the data and resolve the settings; both sides see the same."""
    device = local_device(args.device)
    data = open_data(args.data)
    args.crop = args.crop or ("resized" if isinstance(data.train, FileSource) else "pad")
    config, spec = resolve(settings(args), choose_task("classify"), data, device)
    return config, data, spec, device


def settings(args: argparse.Namespace) -> TrainConfig:
    from saccade.settings import parse_settings

    options = {"embed_dim": 96, "depth": 4, "num_heads": 3} if args.model == "vit_tiny" else {}
    options |= parse_settings(args.option)
    given: dict[str, Any] = {
        "model.name": args.model,
        "model.options": options,
        "optim.batch_size": args.batch_size,
        "data.train_limit": args.images,
        "data.img_size": args.img_size,
        "augment.crop": args.crop,
        "engine.device": args.device,
        "engine.compile": args.compile,
        "schedule.epochs": 100,
        "keep.every_seconds": 1e9,
    }
    return configure("small", given)


class Ours:
    """The training loop of saccade, epochs without validation."""

    def __init__(
        self,
        config: TrainConfig,
        data: Data,
        spec: Any,
        device: torch.device,
        args: argparse.Namespace,  # noqa: ARG002
        folder: Path,
    ) -> None:
        parts = assemble(config, choose_task("classify"), data, spec, world=Alone(), device=device)
        run = Run.create(folder / "run", config)
        self.loop = Loop(config, run, parts, world=Alone(), device=device, console=Console(quiet=True))

    def epoch(self, number: int) -> int:
        self.loop.epoch, self.loop.step = number, number * self.loop.feed.steps
        self.loop._train_epoch()
        return self.loop.feed.steps * self.loop.config.optim.batch_size

    def close(self) -> None:
        self.loop.feed.close()


class Theirs:
    """timm's loader and the loop of its training script."""

    def __init__(
        self,
        config: TrainConfig,
        data: Data,
        spec: Any,
        device: torch.device,
        args: argparse.Namespace,
        folder: Path,  # noqa: ARG002
    ) -> None:
        self.device, self.config = device, config
        self.model = build_model(config.model, spec, seed=0).to(device)
        if config.engine.channels_last and device.type == "cuda":
            self.model = self.model.to(memory_format=torch.channels_last)
        self.average = ModelEmaV3(self.model, decay=config.keep.ema)
        self.optimizer = create_optimizer_v2(self.model, "adamw", lr=1e-3, weight_decay=0.05)
        self.called = torch.compile(self.model) if args.compile else self.model
        gpu = device.type == "cuda"
        self.mixup = Mixup(0.2, 1.0, prob=0.5, label_smoothing=0.1, num_classes=len(spec.outputs))
        self.loader = create_loader(
            files(data, args.images) if isinstance(data.train, FileSource) else Images(data, args, spec.in_chans),
            (spec.in_chans, spec.img_size, spec.img_size),
            args.batch_size,
            is_training=True,
            use_prefetcher=gpu,
            no_aug=False,
            # The pad-and-crop of ours costs about the same as resized crops that keep the ratio.
            train_crop_mode="rrc" if args.crop == "resized" else "rkrc",
            scale=tuple(config.augment.scale) if args.crop == "resized" else (0.8, 1.0),
            interpolation="bicubic",
            hflip=0.5,
            auto_augment="rand-m7-n1-mstd0.5",
            mean=spec.mean,
            std=spec.std,
            num_workers=args.peer_workers,
            device=device,
            persistent_workers=args.peer_workers > 0,
        )

    def epoch(self, number: int) -> int:  # noqa: ARG002
        self.model.train()
        count = 0
        dtype = getattr(torch, self.config.engine.precision)
        for images, labels in self.loader:
            images, labels = images.to(self.device), labels.to(self.device)
            if len(images) % 2 == 0:
                images, targets = self.mixup(images, labels)
            else:
                continue
            if self.config.engine.channels_last and self.device.type == "cuda":
                images = images.contiguous(memory_format=torch.channels_last)
            context = nullcontext() if dtype == torch.float32 else torch.autocast(self.device.type, dtype)
            with context:
                loss = torch.nn.functional.cross_entropy(self.called(images).float(), targets)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.average.update(self.model)
            count += len(images)
        return count

    def close(self) -> None:
        """Nothing is open."""


def files(data: Data, limit: int) -> torch.utils.data.Dataset[Any]:
    """Return timm's own dataset of a folder, with the files that ours trains on."""
    train = limit_samples(data.train, limit)
    assert isinstance(train, FileSource)
    used = {str(train.raw(index)) for index in range(len(train))}
    top = os.path.commonpath([os.path.dirname(os.path.dirname(path)) for path in used])
    dataset: Any = create_dataset("", root=top)
    dataset.reader.samples = [sample for sample in dataset.reader.samples if sample[0] in used]
    assert len(dataset) == len(train)
    return dataset  # type: ignore[no-any-return]


class Images(torch.utils.data.Dataset[Any]):
    """The same images as PIL images, as timm's transforms want them."""

    def __init__(self, data: Data, args: argparse.Namespace, channels: int) -> None:
        train = limit_samples(data.train, args.images)
        assert isinstance(train, ArraySource)
        self.arrays, self.labels = train.images, train.labels
        self.mode = "L" if channels == 1 else "RGB"
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        pixels = self.arrays[index]
        image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert(self.mode)
        return self.transform(image), int(self.labels[index])


def print_table(args: argparse.Namespace, speeds: dict[str, list[float]]) -> None:
    config, data, spec, device = prepared(args)
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}"
    cores = len(os.sched_getaffinity(0))
    print(f"{place}, {cores} cores, torch {torch.__version__}, timm {timm.__version__}")
    size = sum(p.numel() for p in build_model(config.model, spec, seed=0).parameters())
    print(
        f"{config.model.name} ({size / 1e6:.2f} M parameters), {data.name}, {config.data.img_size} px, "
        f"crop {args.crop}, batch {args.batch_size}, {config.engine.precision}{', compiled' if args.compile else ''}, "
        f"{args.peer_workers} workers for timm\n"
    )
    print("| loop | images/s | slowest | fastest | ratio |")
    print("| --- | --: | --: | --: | --: |")
    base = statistics.median(speeds["timm"])
    for name, found in speeds.items():
        middle = statistics.median(found)
        print(f"| {name} | {middle:,.0f} | {min(found):,.0f} | {max(found):,.0f} | {middle / base:.2f}x |")


if __name__ == "__main__":
    main()
