import numpy as np
import pytest
import torch
from scipy import stats

from saccade.data.draws import MASK, generator, key, seed_of, stir, uniform, uniform_number
from saccade.data.feed import sample_keys

EXTREMES = [0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1]


def test_integers_and_tensors_draw_the_same():
    words = torch.tensor(EXTREMES)
    mixed = key(7, words, 3)
    assert mixed.dtype == torch.int64
    assert mixed.tolist() == [key(7, word, 3) for word in EXTREMES]
    numbers = uniform(mixed, 11)
    assert numbers.dtype == torch.float32
    assert numbers.tolist() == [uniform_number(word, 11) for word in mixed.tolist()]


def test_tensors_never_overflow():
    # The exact arithmetic of Python's integers is the reference for every 32-bit word at the ends of its range.
    words = [*range(1000), *range(MASK - 1000, MASK + 1), *(1 << bit for bit in range(32))]
    mixed = stir(torch.tensor(words))
    assert mixed.tolist() == [stir(word) for word in words]
    assert int(mixed.min()) >= 0
    assert int(mixed.max()) <= MASK


def test_stirring_is_one_to_one():
    assert stir(torch.arange(2**20)).unique().numel() == 2**20


def test_numbers_lie_below_one_and_can_be_zero():
    numbers = uniform(torch.arange(2**20), 0)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert (MASK >> 8) * 2.0**-24 < 1


@pytest.mark.parametrize("purpose", [0, 1, 100])
def test_draws_of_successive_pictures_are_uniform(purpose):
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
    seeds = {seed_of(0, step, rank, 0x4015E) for step in range(2000) for rank in range(8)}
    assert len(seeds) == 16_000
    assert max(seeds) < 2**63
    assert torch.equal(torch.rand(3, generator=generator(1, 2)), torch.rand(3, generator=generator(1, 2)))
    assert not torch.equal(torch.rand(3, generator=generator(1, 2)), torch.rand(3, generator=generator(1, 3)))
