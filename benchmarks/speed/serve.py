"""Load on a server: how fast, how steady, and what hostile clients do to the good ones.

    python benchmarks/speed/serve.py [RUN] [--seconds 60] [--clients 64] [--slow 600] [--parts speed kept hostile slow]
    python benchmarks/speed/serve.py --parts kept slow --write benchmarks/speed/results/serve_slow_cpu.md

prints answers per second with and without batching; latencies on kept and on new connections; then a minute of good,
huge, truncated, wrong, slow and vanishing uploads: latencies of the good ones, what became of the others, and the
server's memory; then the same beside more slow uploads than a server that may open 1024 files has places for. Without
a run, `glnet_nano` for images of 28 pixels is served as it is before training. The exit status is 1 if a good request
was lost, if one in a hundred took longer than 2 seconds, or if kept connections are slower than new ones.
"""

import argparse
import asyncio
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.speed.serve_clients import HOSTILE, Client, load, make_image, upload

LATE = 2.0  # seconds that 99 of 100 good requests take at most


def resident_mib(pid):
    """Return the memory of a process."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def latencies(port, *, count=200):
    """Return milliseconds of the middle answer, by what is asked and whether the connection is kept."""
    image = upload(make_image())
    health = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    found = {}
    for name, request in (("/health", health), ("/predict", image)):
        for kept in (True, False):
            client, seconds = Client(port), []
            for _ in range(count):
                began = time.perf_counter()
                await client.send(request)
                assert (await client.answer())[0] == 200
                seconds.append(time.perf_counter() - began)
                if not kept:
                    client.close()
            client.close()
            found[name, kept] = 1000 * float(np.median(seconds))
    return found


@contextlib.contextmanager
def server(run, files=None, **options):
    """Serve a run from a process of its own that may open so many files; gives port and process id."""
    code = f"from saccade.deployment.serve import serve; serve({str(run)!r}, port=0, **{options!r})"
    if files is not None:
        code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files})); {code}"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield int(line.split("http://127.0.0.1:")[1].split()[0]), process.pid
    finally:
        process.terminate()
        process.wait(90)


def in_process(run, batch_size, seconds=4):
    """Return images a second of the model alone."""
    import torch

    from saccade.deployment.predictor import open_predictor

    predictor = open_predictor(run)
    images = torch.zeros(batch_size, predictor.channels, predictor.img_size, predictor.img_size, dtype=torch.uint8)
    predictor.rows(images)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        predictor.rows(images)
        count += batch_size
    return count / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", nargs="?", help="a run's folder; an untrained glnet_nano if not given")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--slow", type=int, default=600, help="slow uploads of the last part")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--write", help="a file for what is printed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if args.write:
            file = stack.enter_context(open(args.write, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(Both(file)))
            print(f"# `python {' '.join(sys.argv)}`\n")
        named = args.run or "glnet_nano, 28 pixels, untrained"
        print(f"{named}; {os.cpu_count()} cores, load before it began {os.getloadavg()[0]:.1f}")
        args.run = args.run or make_run(Path(folder) / "run")
        failures = []
        for part in args.parts:
            print()
            failures += PARTS[part](args)
        print("\n" + ("\n".join(f"FAILED {one}" for one in failures) or "nothing that is asked of a server failed"))
    return 1 if failures else 0


class Both(io.TextIOBase):
    """Writes to a file what goes to the terminal."""

    def __init__(self, file):
        self.file, self.terminal = file, sys.stdout

    def write(self, text):
        self.file.write(text)
        self.file.flush()
        return self.terminal.write(text)

    def flush(self):
        self.terminal.flush()


def make_run(folder):
    """Write the weights of a model that was never trained, which answers as fast as one that was."""
    from saccade.building.build import build_model
    from saccade.data.spec import InputSpec
    from saccade.runs.weights import save_model
    from saccade.settings import ModelConfig

    config = ModelConfig(name="glnet_nano")
    spec = InputSpec(tuple("abcdefghij"), 3, 28, [0.5] * 3, [0.25] * 3, 28)
    folder.mkdir()
    save_model(folder / "model.safetensors", build_model(config, spec, seed=0).state_dict(), config, spec)
    return folder


def print_speed(args):
    print("| the model alone | images/s |\n| --- | --: |")
    for size in (1, 8, args.batch_size):
        print(f"| batch {size} | {in_process(args.run, size):.1f} |", flush=True)
    print("\n| over HTTP | answers/s | p50 ms | p99 ms | failed |\n| --- | --: | --: | --: | --: |")
    rates = {}
    for name, size, clients in (
        ("one client, one at a time", 1, 1),
        (f"{args.clients} clients, one at a time", 1, args.clients),
        (f"{args.clients} clients, batches up to {args.batch_size}", args.batch_size, args.clients),
    ):
        with server(args.run, batch_size=size) as (port, _):
            asyncio.run(load(port, clients=clients, seconds=2))  # warm
            began = time.perf_counter()
            tally, _ = asyncio.run(load(port, clients=clients, seconds=min(args.seconds, 15)))
            rates[name] = len(tally.seconds) / (time.perf_counter() - began)
        print(f"| {name} | {rates[name]:.1f} | {_latencies(tally)} | {len(tally.wrong)} |", flush=True)
    one_client, one_at_a_time, batched = rates.values()
    print(f"\nbatching gives {batched / one_at_a_time:.2f}x one at a time, {batched / one_client:.2f}x one client")
    return []


def print_kept(args):
    with server(args.run, batch_size=args.batch_size) as (port, _):
        found = asyncio.run(latencies(port))
    print("| one client | kept connection, ms | new connection, ms |\n| --- | --: | --: |")
    for name in ("/health", "/predict"):
        print(f"| {name} | {found[name, True]:.1f} | {found[name, False]:.1f} |")
    late = [name for name in ("/health", "/predict") if found[name, True] > 1.1 * found[name, False]]
    return [f"{name} is slower on a kept connection than on a new one" for name in late]


def print_hostile(args):
    print(f"{args.clients} clients for {args.seconds:g} s, of them hostile: {HOSTILE}")
    with server(args.run, batch_size=args.batch_size) as (port, pid):
        return _print_load(args, port, pid, clients=args.clients, enemies=HOSTILE)


def print_slow(args):
    good_clients = 16
    print(
        f"{args.slow} slow uploads for {args.seconds:g} s at a server that may open 1024 files, beside {good_clients} "
        "good clients, half of which make a new connection for each request"
    )
    with server(args.run, files=1024, batch_size=args.batch_size) as (port, pid):
        options = {"clients": args.slow + good_clients, "enemies": {"slow": args.slow}, "kept": False}
        return _print_load(args, port, pid, **options)


def _print_load(args, port, pid, **options):
    tally, resident = asyncio.run(load(port, seconds=args.seconds, memory=lambda: resident_mib(pid), **options))
    print(f"- good: {len(tally.seconds)} answers, p50 and p99 {_latencies(tally)} ms, failed: {len(tally.wrong)}")
    for kind, outcomes in tally.outcomes.items():
        print(f"- {kind}: {dict(outcomes)}")
    parts = [part for part in np.array_split(np.array(resident), 4) if part.size]
    print(
        "- memory, MiB, by quarters of the time: "
        + ", ".join(f"{part.mean():.0f} (max {part.max():.0f})" for part in parts)
    )
    failures = [f"a good request: {line}" for line in tally.wrong[:10]]
    if not tally.percentile(99) < LATE:
        failures.append(f"one good request in a hundred took more than {tally.percentile(99):.1f} s; {LATE} is allowed")
    return failures


PARTS = {"speed": print_speed, "kept": print_kept, "hostile": print_hostile, "slow": print_slow}


def _latencies(tally):
    return f"{1000 * tally.percentile(50):.0f} | {1000 * tally.percentile(99):.0f}"


if __name__ == "__main__":
    sys.exit(main())
