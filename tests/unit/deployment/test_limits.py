import asyncio

import pytest

from saccade.deployment.limits import Limits, Refusal, Uploads


async def chunks(*parts, hang=False):
    for part in parts:
        yield part
        await asyncio.sleep(0)
    if hang:
        await asyncio.Event().wait()


async def read(uploads, *parts, announced=None, hang=False):
    with uploads.room() as room:
        return await uploads.read(chunks(*parts, hang=hang), room, announced=announced)


def refused(coroutine):
    with pytest.raises(Refusal) as refusal:
        asyncio.run(coroutine)
    return refusal.value


def test_a_body_is_put_together():
    uploads = Uploads(Limits(max_bytes=4))
    assert asyncio.run(read(uploads, b"ab", b"cd", announced="4")) == b"abcd"
    assert uploads.held == 0
    assert uploads.received == 4


def test_a_body_that_announces_too_much_is_refused_unread():
    uploads = Uploads(Limits(max_bytes=4))
    refusal = refused(read(uploads, b"", announced="5"))
    assert refusal.status == 413
    assert "5 bytes" in refusal.detail
    assert "the limit is 4;" in refusal.detail
    assert uploads.received == 0


@pytest.mark.parametrize("announced", [None, "2", "-1", "nonsense", "\uff19"])
def test_a_body_that_is_longer_than_it_says_is_refused_where_it_gets_too_long(announced):
    uploads = Uploads(Limits(max_bytes=4))
    assert refused(read(uploads, b"abc", b"de", b"f", announced=announced)).status == 413
    assert uploads.received == 3
    assert uploads.held == 0


def test_a_body_that_does_not_end_in_time_is_refused():
    uploads = Uploads(Limits(max_bytes=4, upload_seconds=0.01))
    assert refused(read(uploads, b"a", hang=True)).status == 408
    assert uploads.held == 0


def test_who_holds_memory_longest_without_finishing_gives_way():
    async def scene():
        uploads = Uploads(Limits(max_bytes=4, memory=8))
        slow = [asyncio.create_task(read(uploads, b"xxxx", hang=True)) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert uploads.held == 8
        assert await read(uploads, b"good") == b"good"
        await asyncio.sleep(0.01)
        assert slow[0].done()
        assert not slow[1].done()
        slow[1].cancel()
        with pytest.raises(Refusal) as refusal:
            await slow[0]
        assert refusal.value.status == 503
        assert refusal.value.retry_after
        await asyncio.gather(slow[1], return_exceptions=True)
        assert uploads.held == 0

    asyncio.run(scene())


def test_uploads_that_are_read_do_not_give_way():
    async def scene():
        uploads = Uploads(Limits(max_bytes=4, memory=6))
        with uploads.room() as first:
            await uploads.read(chunks(b"abcd"), first, announced=None)
            with pytest.raises(Refusal) as refusal:
                await read(uploads, b"efgh")
            assert refusal.value.status == 503
            assert uploads.held == 4

    asyncio.run(scene())


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"max_pixels": -1}, {"upload_seconds": 0}, {"memory": 10}])
def test_limits_that_let_nothing_in_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)


async def trickle(*parts, pause):
    for part in parts:
        yield part
        await asyncio.sleep(pause)


def test_a_body_that_comes_too_slowly_is_refused_before_its_time_is_up():
    async def scene():
        uploads = Uploads(Limits(max_bytes=100, upload_seconds=60, min_rate=1000, slow_seconds=0.05))
        with uploads.room() as room:
            await uploads.read(trickle(*[b"a"] * 100, pause=0.02), room, announced=None)

    refusal = refused(asyncio.wait_for(scene(), 20))
    assert refusal.status == 408
    assert "slower than 1000 bytes per second" in refusal.detail


def test_a_body_that_comes_at_a_fair_rate_may_take_longer_than_a_slow_one_may():
    async def scene():
        uploads = Uploads(Limits(max_bytes=10_000, upload_seconds=60, min_rate=10, slow_seconds=0.01))
        with uploads.room() as room:
            return await uploads.read(trickle(*[b"a" * 100] * 5, pause=0.02), room, announced=None)

    assert asyncio.run(scene()) == b"a" * 500


def test_where_memory_is_full_the_slowest_upload_gives_way():
    async def scene():
        uploads = Uploads(Limits(max_bytes=8, memory=9))
        quick = asyncio.create_task(read(uploads, b"quickly", hang=True))
        await asyncio.sleep(0.05)
        slow = asyncio.create_task(read(uploads, b"s", hang=True))
        await asyncio.sleep(0.05)
        assert await read(uploads, b"g", b"d") == b"gd"
        await asyncio.sleep(0.01)
        assert slow.done()
        assert not quick.done()
        quick.cancel()
        await asyncio.gather(quick, slow, return_exceptions=True)

    asyncio.run(scene())
