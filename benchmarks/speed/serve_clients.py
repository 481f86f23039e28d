"""Good and hostile clients of a server, for `serve.py`."""

import asyncio
import contextlib
import io
import json
import random
import time
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

BOUNDARY = "a-boundary-of-the-benchmark"
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
