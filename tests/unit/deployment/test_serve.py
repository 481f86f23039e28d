import asyncio
import contextlib
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request

import httpx
import pytest
from benchmarks.speed.serve import Client, load, resident_mib, upload

from saccade.deployment import connection, guard
from saccade.deployment.serve import serve
from support.serving import Brightness, image, make_app, running, start, until


async def ask_until_closed(port, seen):
    """Send images one after another; note whether each that was sent whole was answered."""
    client = Client(port)
    while True:
        try:
            await client.open()
            await client.send(upload(image()))
        except OSError:
            seen.append("not accepted")
            return
        try:
            status, _ = await client.answer()
            seen.append(status)
        except (OSError, asyncio.IncompleteReadError) as error:
            partial = getattr(error, "partial", b"")
            seen.append("cut" if partial else "not accepted")  # a byte of an answer means it was accepted
            return
        if client.writer is None:
            return


@pytest.mark.slow
def test_a_signal_under_load_loses_no_accepted_request():
    process, port = start(0.05)
    seen = []

    async def scene():
        clients = [asyncio.create_task(ask_until_closed(port, seen)) for _ in range(24)]
        while len(seen) < 60:
            await asyncio.sleep(0.01)
        half, whole = Client(port), upload(image(5))
        await half.send(whole[:-40])
        await asyncio.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        await asyncio.gather(*clients)
        await half.send(whole[-40:])  # an upload that was begun before the signal is finished after it
        return await half.answer()

    status, body = asyncio.run(asyncio.wait_for(scene(), 90))
    assert status == 200
    assert json.loads(body)["answer"] == "level 5"
    assert process.wait(60) == 0
    assert process.stdout.read().strip() == "finished"
    assert set(seen) <= {200, "not accepted"}
    assert seen.count(200) >= 60


def test_hostile_clients_fail_no_good_request(monkeypatch):
    monkeypatch.setattr(connection, "HEADER_SECONDS", 2.0)
    enemies = {"huge": 1, "truncated": 1, "wrong": 1, "slow": 1, "headers": 1, "vanishing": 2, "endless": 1, "bomb": 1}
    with running(make_app(Brightness(seconds=0.01), limits={"upload_seconds": 2.5})) as address:
        port = int(address.rsplit(":", 1)[1])
        tally, resident = asyncio.run(
            load(port, clients=16, seconds=5, enemies=enemies, memory=lambda: resident_mib(os.getpid()))
        )
    assert tally.wrong == []
    assert tally.outcomes["good"][200] > 20
    assert set(tally.outcomes["huge"]) <= {413, "closed"}
    assert set(tally.outcomes["endless"]) <= {413, "closed"}
    assert set(tally.outcomes["bomb"]) == {413}
    assert set(tally.outcomes["truncated"]) == {422}
    assert set(tally.outcomes["wrong"]) == {415}
    assert set(tally.outcomes["slow"]) == {408}
    assert "left hanging" not in tally.outcomes["headers"]
    assert resident[-1] < resident[0] + 400


def answer_of(port, data, seconds=20):
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connected:
        connected.sendall(data)
        received = b""
        while more := connected.recv(65536):
            received += more
        return received


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(connection, "UNREAD_SECONDS", 0.3)
    monkeypatch.setattr(guard, "REST_SECONDS", 0.3)
    with running(make_app(limits={"max_bytes": 1000, "upload_seconds": 0.3})) as address:
        yield int(address.rsplit(":", 1)[1])


@pytest.mark.parametrize("data", [b"", b"POST /pre", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\r\n"])
def test_a_connection_that_sends_no_whole_headers_is_closed(port, data):
    assert answer_of(port, data) == b""


def test_a_connection_that_was_refused_and_goes_on_sending_is_closed(port):
    data = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n\r\nabc"
    assert b" 413 " in answer_of(port, data)


def test_a_refused_client_that_waits_to_be_asked_for_its_body_is_not_asked(port):
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n"
    answer = answer_of(port, head + b"Expect: 100-continue\r\n\r\n")
    assert b" 413 " in answer
    assert b"100 Continue" not in answer


def test_a_body_that_does_not_come_is_answered_408(port):
    data = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 500\r\n\r\nabc"
    assert b" 408 " in answer_of(port, data)


def test_where_connections_are_too_many_the_oldest_idle_one_gives_way(monkeypatch):
    for name, value in {"most_connections": lambda: 3, "SHARE": 1.0, "IDLE_SECONDS": 0.05, "LOOK_SECONDS": 0.0}.items():
        monkeypatch.setattr(connection, name, value)
    with running(make_app()) as address:
        port = int(address.rsplit(":", 1)[1])
        idle = []
        for _ in range(3):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=20))
            time.sleep(0.05)
        data = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        assert b" 200 " in answer_of(port, data)
        assert [is_open(one) for one in idle] == [False, True, True]
        for one in idle:
            one.close()


SLOW = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 900\r\n\r\n"


def begin_slow(port, *, address="127.0.0.1", size=1):
    """Begin an upload that does not go on."""
    slow = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(address, 0))
    slow.sendall(SLOW + b"x" * size)
    return slow


def is_open(connected):
    connected.settimeout(0.3)
    try:
        return connected.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.fixture
def crowded(monkeypatch):
    """A server with eight places, at which an upload is slow after 50 ms."""
    for name, value in {"most_connections": lambda: 8, "FRESH_SECONDS": 0.05, "LOOK_SECONDS": 0.0}.items():
        monkeypatch.setattr(connection, name, value)
    with running(make_app(limits={"slow_seconds": 30})) as address:
        yield address


def test_more_slow_uploads_than_places_lock_nobody_out(crowded):
    port = int(crowded.rsplit(":", 1)[1])
    slow = []
    for _ in range(4):
        slow += [begin_slow(port) for _ in range(6)]
        time.sleep(0.1)
        for _ in range(4):  # each on a connection of its own
            assert httpx.post(crowded + "/predict", files={"file": image()}).status_code == 200
    assert sum(map(is_open, slow)) <= 8
    for one in slow:
        one.close()


def test_the_slowest_upload_gives_way_first(crowded):
    port = int(crowded.rsplit(":", 1)[1])
    sizes = (800, 1, 700, 600, 500, 400, 300, 200)
    slow = [begin_slow(port, address=f"127.0.0.{1 + place % 2}", size=size) for place, size in enumerate(sizes)]
    time.sleep(0.1)
    assert httpx.get(crowded + "/health").status_code == 200
    assert [is_open(one) for one in slow] == [size > 1 for size in sizes]
    for one in slow:
        one.close()


def test_an_address_takes_places_from_itself_and_from_no_other(crowded):
    port = int(crowded.rsplit(":", 1)[1])
    other = begin_slow(port, address="127.0.0.2")
    time.sleep(0.1)
    slow = []
    for _ in range(20):
        slow.append(begin_slow(port, size=500))
        time.sleep(0.06)
    assert is_open(other)
    assert sum(map(is_open, slow)) <= 7
    for one in (other, *slow):
        one.close()


@pytest.mark.parametrize(
    ("client", "origin"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::/64"),
        (("::ffff:10.0.0.1", 5), "10.0.0.1"),
        (("testclient", 5), "testclient"),
        (None, ""),
    ],
)
def test_a_client_is_told_by_its_address(client, origin):
    assert connection.origin_of(client) == origin


def test_answers_do_not_wait_for_acknowledgements(monkeypatch):
    made = []
    begin = connection.Connection.connection_made

    def connection_made(self, transport):
        begin(self, transport)
        sock = transport.get_extra_info("socket")
        made.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(connection.Connection, "connection_made", connection_made)
    with running(make_app()) as address:
        httpx.get(address + "/health")
    assert made
    assert all(made)


@pytest.mark.parametrize("path", ["/predict", "/nowhere"])
def test_an_ordinary_client_that_sends_too_much_sees_the_refusal(path):
    request = {"data": b"x" * 20_000_000, "headers": {"Content-Type": "image/png"}, "method": "POST"}
    with running(make_app(limits={"max_bytes": 1000})) as address:
        for _ in range(5):  # urllib asks for the connection to be closed, and reads nothing before it has sent all
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(address + path, **request), timeout=20)
            assert refused.value.code == (413 if path == "/predict" else 404)
            assert "detail" in json.loads(refused.value.read())


def test_the_rest_of_a_refused_upload_is_dropped_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(guard, "REST_BYTES", 1_000_000)
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 900000000\r\n"
    with running(make_app(limits={"max_bytes": 1000})) as address:
        for close in (b"Connection: close\r\n\r\n", b"\r\n"):
            sent = 0
            with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), timeout=20) as sender:
                sender.sendall(head + close)
                with contextlib.suppress(ConnectionError):
                    for _ in range(900):
                        sender.sendall(b"x" * 1_000_000)
                        sent += 1
            assert sent < 100


def test_who_hangs_up_while_waiting_costs_no_forward_pass():
    model = Brightness()
    with running(make_app(model)) as address:
        port = int(address.rsplit(":", 1)[1])
        model.go.clear()
        whole = upload(image())
        kept = socket.create_connection(("127.0.0.1", port))
        kept.sendall(whole)
        assert model.begun.wait(20)
        left = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for one in left:
            one.sendall(whole)
        until(lambda: 'saccade_queue_length{model="brightness"} 3' in httpx.get(address + "/metrics").text)
        for one in left:
            one.close()
        time.sleep(0.1)
        model.go.set()
        assert b" 200 " in kept.recv(1000)
        kept.close()
    assert model.batches == [1]


def test_a_port_that_is_taken_is_told_before_a_model_is_opened(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="choose another with --port"):
        serve(tmp_path / "nowhere", port=taken.getsockname()[1])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"targets": []}, "no model"),
        ({"targets": "x", "port": 70000}, "0 to 65535"),
        ({"targets": "x", "max_bytes": 0}, "max_bytes"),
        ({"targets": "x", "port": 0}, "x does not exist"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(given, told):
    with pytest.raises(ValueError, match=told):
        serve(given.pop("targets"), **given)
