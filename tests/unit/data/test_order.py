from collections import Counter
from itertools import pairwise

import pytest
import torch

from saccade.data.draws import Order, part


def pictures(order, epoch):
    return order.epoch(epoch)[0].tolist()


def test_epoch_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    order = Order(length=96, batch_size=16, seed=5)
    first = pictures(order, 2)
    assert sorted(first) == list(range(96))
    torch.manual_seed(123)
    torch.rand(7)
    pictures(order, 0)
    assert pictures(Order(length=96, batch_size=16, seed=5), 2) == first
    others = [pictures(order, 3), pictures(Order(length=96, batch_size=16, seed=6), 2)]
    assert all(other != first for other in others)


def test_batch_size_does_not_change_the_order():
    assert pictures(Order(length=90, batch_size=30, seed=1), 4) == pictures(Order(length=90, batch_size=9, seed=1), 4)


def test_what_does_not_fill_a_batch_comes_in_other_epochs():
    order = Order(length=35, batch_size=16, seed=0)
    assert order.steps == 2
    seen = Counter(picture for epoch in range(60) for picture in pictures(order, epoch))
    assert len(seen) == 35
    assert max(seen.values()) <= 60
    assert min(seen.values()) >= 40  # 55 on average


def test_set_smaller_than_a_batch_is_one_batch():
    order = Order(length=5, batch_size=16, seed=0)
    assert order.steps == 1
    assert sorted(pictures(order, 0)) == list(range(5))


def test_copies_of_a_picture_share_its_batch_under_different_numbers_and_are_no_neighbours():
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
    alone = [places[mine] for mine in order.batches(start=0, rank=0, world=1)]
    assert alone == [places[begin : begin + 11] for begin in range(0, len(places), 11)]
    assert len(alone) == order.steps
    for start in range(order.steps):
        parts = [list(order.batches(start=start, rank=rank, world=3)) for rank in range(3)]
        assert [[p for part in shared for p in places[part]] for shared in zip(*parts, strict=True)] == alone[start:]
