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
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

BOUNDARY = "a-boundary-of-the-benchmark"
LATE = 2.0  # seconds that 99 of 100 good requests take at most
# Of 64 clients; the rest are good.
HOSTILE = {"huge": 4, "endless": 2, "truncated": 4, "wrong": 4, "slow": 4, "headers": 2, "vanishing": 6, "bomb": 2}


@dataclass
class Tally:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)  # of good requests
    outcomes: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))
    wrong: list[str] = field(default_factory=list)  # good requests that failed

    def percentile(self, share):
        return float(np.percentile(self.seconds, share)) if self.seconds else float("nan")


class Client:
    """A keep-alive HTTP/1.1 client, thin so that the server is what is measured."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None

    async def open(self):
        if self.writer is None or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.writer = None

    async def send(self, data):
        await self.open()
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self):
        """Return status and body of the answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        body = await self.reader.readexactly(length)
        if "connection: close" in lines:
            self.close()
        return int(lines[0].split()[1]), body


def upload(data, *, kind="image/png", name="image.png", length=None, path="/predict"):
    """Return a whole request with a form."""
    named = f'form-data; name="file"; filename="{name}"'
    head = f"--{BOUNDARY}\r\nContent-Disposition: {named}\r\nContent-Type: {kind}\r\n\r\n"
    body = head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
        f"Content-Length: {length or len(body)}\r\n\r\n"
    ).encode() + body


def make_image(kind="PNG", size=(64, 64), seed=0):
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


async def good(client, tally, stop, *, kept=True):
    """Ask again and again, on one connection or on new ones; every answer has to be 200."""
    draw = random.Random(id(client))
    images = [make_image(kind, size, seed) for seed, (kind, size) in enumerate(
        [("PNG", (64, 64)), ("JPEG", (64, 64)), ("JPEG", (320, 240)), ("WEBP", (100, 80))]
    )]  # fmt: skip
    while time.monotonic() < stop:
        data = draw.choice(images)
        began = time.perf_counter()
        try:
            await client.send(upload(data))
            status, body = await client.answer()
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.wrong.append(f"{type(error).__name__}: {error}")
            client.close()
            continue
        tally.seconds.append(time.perf_counter() - began)
        tally.outcomes["good"][status] += 1
        if status != 200 or "answer" not in json.loads(body):
            tally.wrong.append(f"{status}: {body[:200]!r}")
        if not kept:
            client.close()


async def hostile(kind, client, tally, stop):
    """Send what no server likes, until it refuses or closes."""
    while time.monotonic() < stop:
        try:
            outcome = await asyncio.wait_for(ATTACKS[kind](client), 40)
        except (OSError, asyncio.IncompleteReadError):
            outcome = "closed"
        except TimeoutError:
            outcome = "left hanging"
        tally.outcomes[kind][outcome] += 1
        client.close()
        await asyncio.sleep(0.05)


async def _whole(client, data):
    await client.send(data)
    return (await client.answer())[0]


async def _endless(client):
    await client.send(
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = asyncio.create_task(client.answer())
    chunk = b"10000\r\n" + b"\0" * 65536 + b"\r\n"
    with contextlib.suppress(OSError):
        while not answer.done():
            await client.send(chunk)
    return (await answer)[0]


async def _slow(client):
    data = upload(make_image())
    await client.send(data[:300])
    answer = asyncio.create_task(client.answer())
    for byte in data[300:]:
        if answer.done():
            break
        with contextlib.suppress(OSError):
            await client.send(bytes([byte]))
        await asyncio.sleep(0.5)
    return (await answer)[0]


async def _headers(client):
    await client.send(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    answer = asyncio.create_task(client.reader.read(1))
    while not answer.done():
        await client.send(b"X-A: b\r\n")
        await asyncio.sleep(0.5)
    return "closed" if not await answer else "answered"


async def _vanishing(client):
    data = upload(make_image(size=(200, 200)))
    await client.send(data if random.random() < 0.5 else data[: len(data) // 2])
    await asyncio.sleep(random.random() * 0.02)
    client.writer.transport.abort()
    return "left"


def _bomb():
    """Return a small PNG whose header tells of 400 million pixels."""
    data = bytearray(make_image())
    data[16:24] = (20000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


ATTACKS = {
    "huge": lambda client: _whole(client, upload(b"\0" * (17 * 1024 * 1024))),
    "endless": _endless,
    "truncated": lambda client: _whole(client, upload(make_image(size=(300, 300))[:5000])),
    "wrong": lambda client: _whole(client, upload(b"%PDF-1.7 " * 100, kind="application/pdf", name="paper.pdf")),
    "slow": _slow,
    "headers": _headers,
    "vanishing": _vanishing,
    "bomb": lambda client: _whole(client, upload(_bomb())),
}


async def load(port, *, clients, seconds, enemies=None, memory=None, kept=True):
    """Run clients against a port.

    Args:
        port: of the server.
        clients: how many, hostile ones included.
        seconds: how long.
        enemies: how many of each hostile kind.
        memory: called each second; what it returns is kept.
        kept: whether all good clients keep their connections; else every second makes a new one for each request.
    """
    tally, stop = Tally(), time.monotonic() + seconds
    enemies = enemies or {}
    jobs = [hostile(kind, Client(port), tally, stop) for kind, count in enemies.items() for _ in range(count)]
    places = range(clients - len(jobs))
    jobs += [good(Client(port), tally, stop, kept=kept or place % 2 == 0) for place in places]
    resident = []

    async def watch():
        while memory is not None and time.monotonic() < stop:
            resident.append(memory())
            await asyncio.sleep(1)

    await asyncio.gather(*jobs, watch())
    return tally, resident


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
