from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from saccade.data.draws import MASK, Order, derive_seed, generator, hash32, key, part, uniform
from saccade.data.feed import sample_keys

EXTREMES = [0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1]


def test_integers_and_tensors_draw_the_same():
    words = torch.tensor(EXTREMES)
    mixed = key(7, words, 3)
    assert mixed.dtype == torch.int64
    assert mixed.tolist() == [key(7, word, 3) for word in EXTREMES]
    numbers = uniform(mixed, 11)
    assert numbers.dtype == torch.float32
    assert numbers.tolist() == [uniform(word, 11) for word in mixed.tolist()]


def test_tensors_never_overflow():
    # The exact arithmetic of Python's integers is the reference for every 32-bit word at the ends of its range.
    words = [*range(1000), *range(MASK - 1000, MASK + 1), *(1 << bit for bit in range(32))]
    mixed = hash32(torch.tensor(words))
    assert mixed.tolist() == [hash32(word) for word in words]
    assert int(mixed.min()) >= 0
    assert int(mixed.max()) <= MASK


def test_stirring_is_one_to_one():
    assert hash32(torch.arange(2**20)).unique().numel() == 2**20


def test_numbers_lie_below_one_and_can_be_zero():
    numbers = uniform(torch.arange(2**20), 0)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert (MASK >> 8) * 2.0**-24 < 1


@pytest.mark.parametrize("purpose", [0, 1, 100])
def test_draws_of_successive_images_are_uniform(purpose):
    keys = sample_keys(0, 3, torch.arange(100_000), torch.zeros(100_000, dtype=torch.int64))
    assert stats.kstest(uniform(keys, purpose).numpy(), "uniform").pvalue > 1e-3


def test_draws_that_differ_in_one_part_of_their_name_are_independent():
    index = torch.arange(50_000)
    zero = torch.zeros_like(index)
    base = sample_keys(0, 3, index, zero)
    draws = {
        "base": uniform(base, 1),
        "purpose": uniform(base, 2),
        "seed": uniform(sample_keys(1, 3, index, zero), 1),
        "epoch": uniform(sample_keys(0, 4, index, zero), 1),
        "copy": uniform(sample_keys(0, 3, index, zero + 1), 1),
        "next": uniform(sample_keys(0, 3, index + 1, zero), 1),
    }
    correlation = np.corrcoef([values.numpy() for values in draws.values()])
    assert np.abs(correlation - np.eye(len(draws))).max() < 5 / np.sqrt(50_000)
    for name, values in draws.items():
        if name != "base":
            cells = torch.histogramdd(torch.stack([draws["base"], values], 1), [8, 8], range=[0.0, 1.0, 0.0, 1.0]).hist
            assert stats.chisquare(cells.flatten().numpy()).pvalue > 1e-4, name


def test_one_bit_changes_half_of_the_bits():
    words = torch.arange(4096)
    for bit in (0, 7, 15, 31):
        changed = key(words) ^ key(words ^ (1 << bit))
        ones = sum(((changed >> place) & 1).sum().item() for place in range(32)) / 4096
        assert 15 < ones < 17


def test_parts_and_their_order_matter():
    names = [(1, 2), (2, 1), (1,), (1, 2, 0), (0, 1, 2), (1, 2 + 2**32)]
    assert len({key(*name) for name in names}) == len(names)


def test_seeds_of_steps_and_processes_are_all_different_and_fit_a_generator():
    seeds = {derive_seed(0, step, rank, 0x4015E) for step in range(2000) for rank in range(8)}
    assert len(seeds) == 16_000
    assert max(seeds) < 2**63
    assert torch.equal(torch.rand(3, generator=generator(1, 2)), torch.rand(3, generator=generator(1, 2)))
    assert not torch.equal(torch.rand(3, generator=generator(1, 2)), torch.rand(3, generator=generator(1, 3)))


def images(order, epoch):
    return order.epoch(epoch)[0].tolist()


def test_epoch_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    order = Order(length=96, batch_size=16, seed=5)
    first = images(order, 2)
    assert sorted(first) == list(range(96))
    torch.manual_seed(123)
    torch.rand(7)
    images(order, 0)
    assert images(Order(length=96, batch_size=16, seed=5), 2) == first
    others = [images(order, 3), images(Order(length=96, batch_size=16, seed=6), 2)]
    assert all(other != first for other in others)


def test_batch_size_does_not_change_the_order():
    assert images(Order(length=90, batch_size=30, seed=1), 4) == images(Order(length=90, batch_size=9, seed=1), 4)


def test_what_does_not_fill_a_batch_comes_in_other_epochs():
    order = Order(length=35, batch_size=16, seed=0)
    assert order.steps == 2
    seen = Counter(image for epoch in range(60) for image in images(order, epoch))
    assert len(seen) == 35
    assert max(seen.values()) <= 60
    assert min(seen.values()) >= 40  # 55 on average


def test_set_smaller_than_a_batch_is_one_batch():
    order = Order(length=5, batch_size=16, seed=0)
    assert order.steps == 1
    assert sorted(images(order, 0)) == list(range(5))


def test_copies_of_an_image_share_its_batch_under_different_numbers_and_are_no_neighbours():
    order = Order(length=64, batch_size=16, seed=0, repeats=3)
    index, copies = (tensor.view(4, 16) for tensor in order.epoch(1))
    assert order.steps == 4
    for batch, numbers in zip(index.tolist(), copies.tolist(), strict=True):
        assert len(set(zip(batch, numbers, strict=True))) == 16
        assert set(Counter(batch).values()) <= {2, 3}
        assert all(one != two for one, two in pairwise(batch))
    assert not set(index[0].tolist()) & set(index[1].tolist())


def test_empty_set_is_refused():
    with pytest.raises(ValueError, match="training set is empty"):
        Order(length=0, batch_size=4, seed=0)


@pytest.mark.parametrize("length", [2, 3, 33, 64, 101])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_parts_are_whole_pairs_and_make_up_the_whole(length, count):
    parts = [part(length, index, count) for index in range(count)]
    assert [place for piece in parts for place in range(length)[piece]] == list(range(length))
    for piece in parts:
        assert piece.start % 2 == 0 or piece.start == length
    sizes = [piece.stop - piece.start for piece in parts]
    assert max(sizes) - min(sizes) <= 3


@pytest.mark.parametrize("length", [35, 33, 5])
def test_processes_share_out_every_batch(length):
    order = Order(length=length, batch_size=11, seed=0)
    places = list(range(min(length, 33)))
    alone = [places[mine] for mine in order.batches(start=0)]
    assert alone == [places[begin : begin + 11] for begin in range(0, len(places), 11)]
    assert len(alone) == order.steps
    for start in range(order.steps):
        parts = [list(replace(order, rank=rank, world=3).batches(start=start)) for rank in range(3)]
        assert [[p for part in shared for p in places[part]] for shared in zip(*parts, strict=True)] == alone[start:]
