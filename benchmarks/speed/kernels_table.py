"""What kernels are worth as a user gets them: all of them, none, and all but one.

    python benchmarks/speed/kernels_table.py --out table.jsonl  # every group, the most important first
    python benchmarks/speed/kernels_table.py --out table.jsonl --groups train1,train2 --budget 500
    python benchmarks/speed/kernels_table.py --out table.jsonl --against OTHER/src  # this version and another one
    python benchmarks/speed/kernels_table.py --out trial.jsonl --smoke  # every path, tiny, on a CPU

A cell is what is done, a model and a value of SACCADE_KERNELS, which another version reads as well; each has a process
of its own:

    train       the step of `saccade train` as its loop runs it: on a GPU by compiled blocks, replayed as a CUDA graph,
                and the same steps kernel by kernel (engine.graphs=false); compiled: with engine.compile=true on a CPU
    demo        the same with the recipe of `make demo` on the embedded images
    optimize    `saccade.optimize`, on a GPU compiled and in bfloat16
    eager       timm.create_model with saccade.accelerate, inference and a training step, on a GPU by autocast
    predict     what `saccade predict` asks of a model, without reading files

The cells of a group get ready side by side, at most `--at-once`. When all are, or the limit has passed, they are timed
in turns, forwards and backwards, while nothing else runs: ratios are those of one group in one run. A group's cells are
written as soon as they are timed; cells in the file already are left out. Images are random, of 1000 classes.
"""

import argparse
import copy
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SWIN, VIT = "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224"
OURS = ("glnet_4g", "glnet_stl", "nommer_tiny", "sot_small")
OTHER = "src="  # before the folder of another version, in the place of SACCADE_KERNELS
PLACE = Path(tempfile.gettempdir()) / "kernels_table"
Cell = tuple[str, str, str]  # what is done, model, SACCADE_KERNELS


def left_out(device: str, mode: str) -> list[str]:
    """Return the kernels of the table that a device and a mode have."""
    from saccade.kernels.apply import unavailable
    from saccade.kernels.table import KERNELS

    return [one.name for one in KERNELS if not one.workaround and unavailable(one, device, mode) is None]


def both(*names: str, kind: str) -> list[Cell]:
    """Return cells with all kernels and with none."""
    return [(kind, name, kernels) for name in names for kernels in ("auto", "off")]


def version_groups(source: Path, kinds: Sequence[str]) -> dict[str, list[Cell]]:
    """Return the groups of this version and another one: each model by both, with the peer on a GPU."""
    groups: dict[str, list[Cell]] = {}
    for kind in kinds:
        names = ("glnet_nano",) if kind == "demo" else OURS if len(kinds) == 2 else (VIT, "glnet_stl", "sot_tiny")
        for number in range(0, len(names), 2):
            versions, some = ("auto", f"{OTHER}{source}"), names[number : number + 2]
            groups[f"{kind}_versions{number // 2 + 1}"] = [(kind, name, one) for name in some for one in versions]
    return groups


def gpu_groups() -> dict[str, list[Cell]]:
    """Return the groups of a GPU, the most important first; each has the peer or what its cells are held against."""
    groups: dict[str, list[Cell]] = {}
    for kind in ("train", "optimize"):
        for number, pair in enumerate((OURS[:2], OURS[2:]), 1):
            groups[f"{kind}{number}"] = [*both(*pair, kind=kind), (kind, SWIN, "auto")]
    groups["eager"] = [*both(*OURS, kind="eager"), ("eager", SWIN, "auto")]
    kernels = left_out("cuda", "train")
    for start in range(0, len(kernels), 4):
        for name in OURS:
            some = kernels[start : start + 4]
            groups[f"{name}{start // 4 + 1}"] = [("train", name, "auto"), *(("train", name, f"-{one}") for one in some)]
    return groups


def cpu_groups() -> dict[str, list[Cell]]:
    """Return the groups of a CPU."""
    names = ("glnet_stl", "sot_tiny", VIT)
    groups = {"demo": both("glnet_nano", kind="demo")}
    groups |= {f"train_{name}": both(name, kind="train") for name in (VIT, "glnet_stl", "sot_tiny")}
    groups["compiled_demo"] = [*both("glnet_nano", kind="compiled_demo"), ("demo", "glnet_nano", "off")]
    groups["compiled_vit"] = [*both(VIT, kind="compiled"), ("train", VIT, "off")]
    for kind in ("eager", "predict", "optimize"):
        groups |= {f"{kind}_{name}": both(name, kind=kind) for name in names}
    for name in left_out("cpu", "train"):
        groups[f"demo_{name}"] = [("demo", "glnet_nano", kernels) for kernels in ("auto", "off", f"-{name}")]
    return groups


def smoke_groups() -> dict[str, list[Cell]]:
    """Return one group of every kind."""
    groups = {kind: both("glnet_nano", kind=kind) for kind in ("demo", "train", "eager", "predict", "optimize")}
    groups["left_out"] = [
        ("train", "glnet_nano", kernels)
        for kernels in ("auto", *(f"-{one}" for one in left_out("cpu", "train")[:1]), "-no_such")
    ]
    groups["compiled"] = [("compiled", "sot_7", "off")]
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines, one a cell; what it holds is not done again"
    )
    parser.add_argument("--against", type=Path, help="the `src` of another version, timed beside this one")
    parser.add_argument("--groups", help="these alone, with commas between, in this order")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no more is begun or waited for")
    parser.add_argument("--least", type=float, default=60, help="seconds that have to be left for a group to be begun")
    parser.add_argument("--limit", type=float, default=240, help="seconds a group may take to get ready")
    parser.add_argument("--at-once", type=int, default=5, help="processes that get ready side by side")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, help="steps of a round; 10 on a GPU, 3 on a CPU")
    parser.add_argument("--batch-size", type=int, help="256 on a GPU, 8 on a CPU")
    parser.add_argument("--size", type=int, default=224, help="image side")
    parser.add_argument("--smoke", action="store_true", help="try the script itself, tiny and on a CPU")
    parser.add_argument("--list", action="store_true", help="print the groups and end")
    parser.add_argument("--alone", nargs=2, metavar=("KIND", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.smoke:
        args.device, args.size, args.batch_size, args.steps, args.rounds = "cpu", 64, 4, 2, 2
    if args.alone:
        settle(args)
        Alone(args).run(*args.alone)
        return
    begun = time.monotonic()
    on_gpu = args.device != "cpu" and has_gpu()
    groups = smoke_groups() if args.smoke else gpu_groups() if on_gpu else cpu_groups()
    if args.against:
        groups = version_groups(args.against, ("train", "optimize") if on_gpu else ("eager", "train", "demo"))
    if args.groups:
        groups = {name: groups[name] for name in args.groups.split(",")}
    if args.list:
        print("\n".join(f"{name}: {', '.join(' '.join(cell) for cell in cells)}" for name, cells in groups.items()))
        return
    args.device = "cuda" if on_gpu else "cpu"
    settle(args)
    make_images(args)
    for name, cells in groups.items():
        left = args.budget - (time.monotonic() - begun)
        done = {(one["group"], *one["cell"]) for one in read(args.out)}
        cells = [cell for cell in cells if (name, *cell) not in done]
        if cells and left < args.least:
            print(f"{name}: left out, {left:.0f} s are left", flush=True)
        elif cells:
            measure(name, cells, args, until=time.monotonic() + left)
    print(f"\n{machine(args)}\nCommand: python benchmarks/speed/kernels_table.py {' '.join(sys.argv[1:])}\n")
    print(as_markdown(read(args.out)))


def settle(args: argparse.Namespace) -> None:
    """Fill in what depends on the device."""
    gpu = args.device == "cuda"
    args.steps, args.batch_size = args.steps or (10 if gpu else 3), args.batch_size or (256 if gpu else 8)


def has_gpu() -> bool:
    """Whether there is a GPU, without a context on it in this process."""
    code = "import torch; print(torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "True"


def images_file(args: argparse.Namespace) -> Path:
    """Return where the images lie."""
    return PLACE / f"{args.size}-{args.batch_size}.npz"


def make_images(args: argparse.Namespace) -> None:
    """Write random images with a thousand classes, for some tens of steps."""
    import numpy as np

    place = images_file(args)
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        random, count = np.random.default_rng(0), max(32 * args.batch_size, 1000)
        shape = (args.size, args.size, 3)
        x, y = random.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % 1000
        part = place.with_suffix(".part.npz")
        np.savez(part, x_train=x, y_train=y, x_test=x[: args.batch_size], y_test=y[: args.batch_size])
        part.replace(place)


class Process:
    """A cell's process as the one that starts it sees it."""

    def __init__(self, cell: Cell, number: int, args: argparse.Namespace) -> None:
        kind, model, kernels = cell
        self.cell, self.begun, self.ready, self.rounds = cell, time.monotonic(), None, []
        self.error: str | None = None
        self.log = PLACE / f"{os.getpid()}-{number}-{model}.log"
        command = [sys.executable, __file__, "--out", str(args.out), "--device", args.device, "--alone", kind, model]
        command += ["--steps", str(args.steps), "--batch-size", str(args.batch_size), "--size", str(args.size)]
        env = {**os.environ, "SACCADE_KERNELS": kernels}
        if kernels.startswith(OTHER):
            path = os.pathsep.join([os.path.abspath(kernels.removeprefix(OTHER)), os.environ.get("PYTHONPATH", "")])
            env |= {"SACCADE_KERNELS": "auto", "PYTHONPATH": path}
        if args.device == "cuda":
            env |= {"TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "2"}
        with open(self.log, "wb") as log:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=env, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def look(self) -> bool:
        """Return whether it is done getting ready, or has failed."""
        if self.ready is None and self.error is None and not self.lines.empty():
            self._take(1.0, "ready")
        return self.ready is not None or self.error is not None

    def time(self, seconds: float) -> None:
        """Have it timed once."""
        if self.ready is not None and self.error is None:
            self._say("time")
            self._take(seconds, "round")

    def _take(self, seconds: float, what: str) -> None:
        try:
            line = self.lines.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            self.fail(f"no {what} within {seconds:.0f} s")
            return
        if not line:
            self.fail(self.log.read_text(errors="replace").strip()[-400:] or "ended")
        elif what == "ready":
            self.ready = json.loads(line)
        else:
            self.rounds.append(json.loads(line))

    def fail(self, why: str) -> None:
        """Take note of why there is no answer and end it."""
        self.error = why
        self.end()

    def _say(self, word: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        except OSError:
            self.error = self.error or "ended"

    def end(self) -> None:
        """End it and wait until its memory is free."""
        self.process.kill()
        self.process.wait()

    def record(self, group: str, args: argparse.Namespace) -> dict[str, Any]:
        """Return what is written of it."""
        made: dict[str, Any] = {"group": group, "cell": list(self.cell), "machine": machine(args), **(self.ready or {})}
        made |= {"error": self.error} if self.error else {}
        made["ms"] = {mode: [one[mode] for one in self.rounds] for mode in (self.rounds[0] if self.rounds else {})}
        return made


def measure(name: str, cells: list[Cell], args: argparse.Namespace, *, until: float) -> None:
    """Get a group's cells ready, time them in turns and write what came out."""
    begun = time.monotonic()
    limit = min(begun + args.limit, until - 15)
    running: list[Process] = []
    try:
        while time.monotonic() < limit:
            busy = [one for one in running if not one.look()]
            if len(running) == len(cells) and not busy:
                break
            if len(running) < len(cells) and len(busy) < args.at_once:
                running.append(Process(cells[len(running)], len(running), args))
            else:
                time.sleep(0.1)
        for one in running:
            if not one.look():
                one.fail(f"not ready within {time.monotonic() - begun:.0f} s")
        print(f"{name}: ready after {time.monotonic() - begun:.0f} s", flush=True)
        for turn in range(args.rounds):
            for one in running if turn % 2 == 0 else reversed(running):
                if time.monotonic() < until - 3:
                    one.time(min(60.0 if args.device == "cuda" else 600.0, until - time.monotonic()))
    finally:
        with open(args.out, "a") as out:
            for one in running:
                out.write(json.dumps(one.record(name, args)) + "\n")
        for one in running:
            one.end()
    failed = [f"{' '.join(one.cell)}: {one.error.splitlines()[-1][:150]}" for one in running if one.error]
    print("\n".join([f"{name}: done after {time.monotonic() - begun:.0f} s", *failed]), flush=True)


def machine(args: argparse.Namespace) -> str:
    """Return what the numbers are of."""
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm"))
    where = args.device
    if where == "cpu":
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        where = models[0].partition(":")[2].strip() if models else platform.machine()
    else:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        where = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return f"{where}, {os.cpu_count()} cores; Python {platform.python_version()}, {packages}; {time.strftime('%F')}"


def read(path: Path) -> list[dict[str, Any]]:
    """Return the cells that a file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def as_markdown(records: list[dict[str, Any]]) -> str:
    """Return a table: medians, and how many times as fast as others of the same group."""
    heads = (
        "cell",
        "mode",
        "kernels",
        "ms (lowest to highest)",
        "images/s",
        "off",
        "auto",
        "peer",
        "first step",
        "peak",
    )
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | --: | --: | --: | --: | --: | --: | --: |"]
    for one in records:
        kind, model, kernels = one["cell"]
        if not one["ms"]:
            why = " ".join(str(one.get("error")).split())[-120:].replace("|", "/")
            lines.append(f"| {kind} {model} | | {kernels} | {why} {'| ' * 6}|")
        for mode, spent in one["ms"].items():
            middle = statistics.median(spent)
            others = (model, "off"), (model, "auto"), (SWIN, "auto")
            ratios = " | ".join(_ratio(records, one, mode, *other) for other in others)
            told = f"{middle:.2f} ({min(spent):.2f} to {max(spent):.2f}) | {1e3 * one['batch_size'] / middle:,.0f}"
            cost = f"{one['first_s']:.0f} s | " + (f"{one['peak_gib']:.1f} GiB" if "peak_gib" in one else "")
            lines.append(f"| {kind} {model} | {mode} | {kernels} | {told} | {ratios} | {cost} |")
    return "\n".join(lines)


def _ratio(records: list[dict[str, Any]], one: dict[str, Any], mode: str, model: str, kernels: str) -> str:
    """Return how many times as fast a cell is as another of its group."""
    if [model, kernels] == one["cell"][1:] and not one["cell"][0].startswith("compiled"):
        return ""
    for other in records:
        kinds = {one["cell"][0], one["cell"][0].replace("compiled_", ""), one["cell"][0].replace("compiled", "train")}
        same = other is not one and other["group"] == one["group"] and other["cell"][0] in kinds
        if same and other["cell"][1:] == [model, kernels] and other["ms"].get(mode):
            return f"{statistics.median(other['ms'][mode]) / statistics.median(one['ms'][mode]):.3f}x"
    return ""


class Alone:
    """A cell's own process: gets ready, tells so by a line, is timed whenever it is asked to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever prints, prints into the log
        self.args, self.gpu, self.begun = args, args.device == "cuda", time.perf_counter()
        self.names: Sequence[str] = ()  # kernels that run; an earlier version does not tell

    def run(self, kind: str, model: str) -> None:
        """Do what a cell asks for until the process is ended."""
        if kind in ("train", "demo", "compiled", "compiled_demo"):
            self.train(model, demo=kind.endswith("demo"), compiled=kind.startswith("compiled") or None)
        else:
            begun = time.perf_counter()
            steps = getattr(self, kind)(model)
            for step in steps.values():
                step()
            self.wait()
            first = time.perf_counter() - begun
            for step in steps.values():
                self.spent(step, 4)
            self.tell({"first_s": first, "kernels": list(self.names)})
            while sys.stdin.readline():
                self.answer({mode: self.spent(step, self.args.steps) for mode, step in steps.items()})

    def named(self, model: Any) -> tuple[str, ...]:
        """Return the kernels whose replacements are in a model."""
        try:
            from saccade.kernels.table import KERNELS
        except ImportError:
            return ()
        kinds = {type(module) for module in model.modules()}
        return tuple(one.name for one in KERNELS if not kinds.isdisjoint(one.replacements))

    def tell(self, more: dict[str, Any]) -> None:
        """Say that all is ready."""
        import torch

        found = {"ready_s": time.perf_counter() - self.begun, "batch_size": self.args.batch_size, **more}
        found |= {"threads": torch.get_num_threads()}
        if self.gpu:
            found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            torch.cuda.empty_cache()
        self.answer(found)

    def answer(self, found: dict[str, Any]) -> None:
        """Write a line."""
        self.out.write(json.dumps(found) + "\n")
        self.out.flush()

    def wait(self) -> None:
        """Wait for the device."""
        if self.gpu:
            import torch

            torch.cuda.synchronize()

    def spent(self, step: Callable[[], Any], count: int) -> float:
        """Return milliseconds of a step: on a GPU the mean of several in a row, on a CPU their median."""
        taken = []
        self.wait()
        begun = last = time.perf_counter()
        for _ in range(count):
            step()
            taken.append(time.perf_counter() - last)
            last = time.perf_counter()
        self.wait()
        return 1e3 * ((time.perf_counter() - begun) / count if self.gpu else statistics.median(taken))

    def train(self, model: str, *, demo: bool, compiled: bool | None) -> None:
        """Train by the command's own loop, whose every step comes by here."""
        import saccade
        from saccade.training.loop import Loop

        args, watch = self.args, Watch(self)
        name = "_run_or_replay" if hasattr(Loop, "_run_or_replay") else "_run"  # of an earlier version
        own = getattr(Loop, name)
        setattr(Loop, name, lambda loop, batch, *, strong: watch.step(loop, batch, strong, own))
        settings: dict[str, Any] = {"keep.every_seconds": 1e9, "keep.evaluate_every": 10**6, "schedule.epochs": 10**4}
        if compiled:
            settings["engine.compile"] = True
        if not demo:
            settings |= {"optim.batch_size": args.batch_size, "optim.least_steps": None}
            settings |= {"data.mean": [0.5] * 3, "data.std": [0.3] * 3}
        with tempfile.TemporaryDirectory() as folder:
            saccade.train(
                None if demo else str(images_file(args)),
                model=None if demo else model,
                recipe="quick" if demo else None,
                settings=settings,
                device=args.device,
                out=f"{folder}/run",
                quiet=True,
            )

    def create(self, name: str) -> tuple[Any, Any]:
        """Return a model and images."""
        import timm
        import torch

        import saccade  # noqa: F401 registers the backbones

        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high" if self.gpu else "highest")
        try:
            model = timm.create_model(name, img_size=self.args.size)
        except TypeError:  # takes images of any size
            model = timm.create_model(name)
        images = torch.randn(self.args.batch_size, 3, self.args.size, self.args.size, device=self.args.device)
        if self.gpu:
            model, images = (x.to("cuda", memory_format=torch.channels_last) for x in (model, images))
        return model, images

    def optimize(self, name: str) -> dict[str, Callable[[], Any]]:
        """Return inference by an optimized copy."""
        import torch

        import saccade

        model, images = self.create(name)
        images = images.to(torch.bfloat16) if self.gpu else images
        fast = saccade.optimize(model.to(images.dtype).eval(), images[:2], compile=self.gpu)
        self.names = self.named(fast)

        def infer() -> None:
            with torch.inference_mode():
                fast(images)

        return {"infer": infer}

    def eager(self, name: str) -> dict[str, Callable[[], Any]]:
        """Return inference and training of a model as it was created."""
        import torch
        import torch.nn.functional as F

        import saccade

        model, images = self.create(name)
        labels = torch.arange(len(images), device=images.device) % 1000
        asked = copy.deepcopy(model).eval()
        if "accelerate" in dir(saccade):  # earlier versions have kernels in their layers
            found = [*saccade.accelerate(model, "train").names, *saccade.accelerate(asked, "infer").names]
            self.names = list(dict.fromkeys(found))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def half() -> Any:
            return torch.autocast(self.args.device, torch.bfloat16, enabled=self.gpu)

        def infer() -> None:
            with torch.inference_mode(), half():
                asked(images)

        def train() -> None:
            with half():
                loss = F.cross_entropy(model.train()(images).float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return {"infer": infer, "train": train}

    def predict(self, name: str) -> dict[str, Callable[[], Any]]:
        """Return the answers of what `saccade predict` opens."""
        import torch

        from saccade.building.loading import LoadedModel
        from saccade.data.spec import InputSpec
        from saccade.deployment.predictor import TorchPredictor

        model, images = self.create(name)
        names, third = tuple(str(number) for number in range(1000)), [0.3] * 3
        spec = InputSpec(outputs=names, in_chans=3, img_size=self.args.size, mean=third, std=third, task="classify")
        opened = TorchPredictor(LoadedModel(model.eval(), spec, name, "timm"))
        self.names = self.named(model)
        pixels = torch.randint(0, 256, images.shape, dtype=torch.uint8)
        return {"predict": lambda: opened.outputs(pixels)}


class Watch:
    """Counts the steps of a loop, times the first and, when it is asked to, some in a row."""

    WARM = 8  # steps until a graph is captured and replayed

    def __init__(self, alone: Alone) -> None:
        self.alone, self.count = alone, 0
        self.found: dict[str, Any] = {}

    def step(self, loop: Any, batch: Any, strong: bool, own: Callable[..., None]) -> None:
        """Do a step of the loop; after the last that warms up, those that are timed are steps on this batch."""
        begun = time.perf_counter()
        own(loop, batch, strong=strong)
        self.count += 1
        if self.count == 1:
            self.alone.wait()
            self.found["first_s"] = time.perf_counter() - begun
        if self.count < (self.WARM if self.alone.gpu else 3):
            return
        steps = self.alone.args.steps

        def once() -> None:
            own(loop, batch, strong=strong)

        def expand() -> None:
            loop.feed.expand(batch, strong=strong)

        size = len(next(iter(batch.values())))
        graphs, guard = bool(loop.graphs), getattr(loop, "guard", None)
        self.found |= {
            "batch_size": size,
            "replayed": graphs and any(r.graph is not None for r in loop.replays.values()),
        }
        self.found["kernels"] = list(guard.names) if guard is not None else []
        self.found |= {"compiled": bool(loop.config.engine.compile), "augment_ms": self.alone.spent(expand, 5)}
        self.alone.tell(self.found)
        while sys.stdin.readline():
            told = {"replayed" if graphs else "stepwise": self.alone.spent(once, steps)}
            if graphs:
                told["stepwise"] = self.stepwise(loop, once, steps)
            self.alone.answer(told)
        os._exit(0)

    def stepwise(self, loop: Any, once: Callable[[], None], steps: int) -> float:
        """Return milliseconds of a step that is not replayed, and give its memory back."""
        import torch

        loop.graphs = False
        self.alone.spent(once, 2)
        found = self.alone.spent(once, steps)
        loop.graphs = True
        torch.cuda.empty_cache()
        return found


if __name__ == "__main__":
    main()
