import asyncio
import threading

import numpy as np
import pytest
import torch

from saccade.deployment.batching import Batcher, ClientGone
from saccade.deployment.limits import Refusal


class Model:
    """Answers an image's first value; can be held up."""

    def __init__(self):
        self.batches, self.go = [], threading.Event()
        self.go.set()

    def __call__(self, images):
        assert self.go.wait(10)
        self.batches.append(images[:, 0, 0, 0].tolist())
        if 13 in self.batches[-1]:
            raise RuntimeError("thirteen")
        return images[:, 0, 0, :1].numpy().astype(np.float32)


def image(value):
    return torch.full((1, 2, 2), value, dtype=torch.uint8)


def play(scene, **options):
    """Run a scene with a started batcher; whatever it does has to end within ten seconds."""
    model = Model()

    async def whole():
        batcher = Batcher(model, **options)
        batcher.start()
        async with asyncio.timeout(10):
            await scene(batcher, model)
            await batcher.stop()

    asyncio.run(whole())
    return model


def test_images_that_come_together_share_a_forward_pass_and_each_gets_its_own_answer():
    async def scene(batcher, model):
        answers = await asyncio.gather(*(batcher.submit(image(value)) for value in range(6)))
        assert [float(answer[0]) for answer in answers] == list(range(6))

    model = play(scene, batch_size=4)
    assert model.batches == [[0, 1, 2, 3], [4, 5]]


def test_a_lone_image_does_not_wait_for_others():
    async def scene(batcher, model):
        assert (await batcher.submit(image(5)))[0] == 5

    play(scene, wait_ms=60_000)


def test_a_batch_waits_for_who_is_on_the_way():
    async def scene(batcher, model):
        with batcher.coming():
            first = asyncio.create_task(batcher.submit(image(1)))
            await asyncio.sleep(0.05)
            assert not model.batches
            second = asyncio.create_task(batcher.submit(image(2)))
            await asyncio.sleep(0)
        await asyncio.gather(first, second)

    model = play(scene, wait_ms=60_000)
    assert model.batches == [[1, 2]]


def test_a_batch_waits_no_longer_than_it_may():
    async def scene(batcher, model):
        with batcher.coming():
            assert (await batcher.submit(image(1)))[0] == 1

    play(scene, wait_ms=20)


def test_while_a_batch_is_computed_the_next_gathers():
    async def scene(batcher, model):
        model.go.clear()
        asked = [asyncio.create_task(batcher.submit(image(0)))]
        await asyncio.sleep(0.02)
        asked += [asyncio.create_task(batcher.submit(image(value))) for value in (1, 2, 3)]
        await asyncio.sleep(0.02)
        model.go.set()
        await asyncio.gather(*asked)

    model = play(scene)
    assert model.batches == [[0], [1, 2, 3]]


def test_a_full_queue_refuses_instead_of_growing():
    async def scene(batcher, model):
        model.go.clear()
        asked = [asyncio.create_task(batcher.submit(image(0)))]
        await asyncio.sleep(0.02)  # taken out of the queue
        asked += [asyncio.create_task(batcher.submit(image(value))) for value in (1, 2)]
        await asyncio.sleep(0.02)
        with pytest.raises(Refusal) as refusal:
            await batcher.submit(image(3))
        assert (refusal.value.status, refusal.value.retry_after) == (503, 1)
        assert len(batcher) == 2
        model.go.set()
        await asyncio.gather(*asked)

    play(scene, queue=2)


def test_who_has_hung_up_costs_no_forward_pass():
    async def gone():
        return True

    async def scene(batcher, model):
        model.go.clear()
        first = asyncio.create_task(batcher.submit(image(0)))
        await asyncio.sleep(0.02)
        left = asyncio.create_task(batcher.submit(image(1), disconnected=gone))
        cancelled = asyncio.create_task(batcher.submit(image(2)))
        last = asyncio.create_task(batcher.submit(image(3)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        model.go.set()
        with pytest.raises(ClientGone):
            await left
        await asyncio.gather(first, last)

    model = play(scene)
    assert model.batches == [[0], [3]]


def test_an_error_of_the_model_reaches_who_asked_and_the_worker_lives_on():
    async def scene(batcher, model):
        with pytest.raises(RuntimeError, match="thirteen"):
            await batcher.submit(image(13))
        assert batcher.alive
        assert (await batcher.submit(image(4)))[0] == 4

    play(scene)


def test_stopping_answers_what_waits():
    async def scene(batcher, model):
        asked = [asyncio.create_task(batcher.submit(image(value))) for value in range(5)]
        await asyncio.sleep(0)
        await batcher.stop()
        assert [float((await one)[0]) for one in asked] == list(range(5))
        assert not batcher.alive

    play(scene, batch_size=2)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"queue": 0}, {"wait_ms": -1}])
def test_a_batcher_that_could_not_work_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Batcher(Model(), **wrong)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_out_of_memory_while_a_batch_is_put_together_is_told_and_the_worker_lives_on(monkeypatch, error):
    async def scene(batcher, model):
        stack = torch.stack

        def fail(_):
            raise error

        monkeypatch.setattr(torch, "stack", fail)
        with pytest.raises(Refusal) as refused:
            await batcher.submit(image(1))
        assert refused.value.status == 503
        monkeypatch.setattr(torch, "stack", stack)
        assert (await batcher.submit(image(2)))[0] == 2
        assert batcher.alive

    play(scene)


def test_who_cannot_be_asked_whether_he_is_there_is_answered():
    async def gone():
        raise RuntimeError("unknown")

    async def scene(batcher, model):
        assert (await batcher.submit(image(3), disconnected=gone))[0] == 3
        assert batcher.alive

    play(scene)


def test_too_few_answers_leave_nobody_waiting():
    async def scene(batcher, model):
        batcher.answer = lambda images: np.zeros((1, 1), np.float32)
        answers = await asyncio.gather(*(batcher.submit(image(v)) for v in range(3)), return_exceptions=True)
        assert sum(isinstance(answer, RuntimeError) for answer in answers) == 2
        assert batcher.alive

    play(scene, batch_size=3)
