import pytest
import torch
from torch import Tensor

from saccade.layers.token_label import (
    TokenBox,
    TokenLabelOutput,
    draw_place,
    place_box,
    sample_box,
    swap_box,
    token_label_loss,
    token_label_terms,
)
from support.golden import normal, read, tensor


def golden_case(box: TokenBox) -> tuple[TokenLabelOutput, Tensor]:
    logits, tokens = tensor("tklb/out", (4, 10)).double(), tensor("tklb/aux", (4, 49, 10)).double()
    targets = (2 * torch.from_numpy(normal("tklb/target_logits", (4, 10, 51))).float().double()).softmax(1)
    return TokenLabelOutput(logits, tokens, box), targets


@pytest.mark.parametrize("box", [TokenBox(0, 0, 0, 0), TokenBox(1, 2, 4, 6)])
@pytest.mark.parametrize(("name", "ground_truth"), [("token_label_ce", False), ("token_label_gt_ce", True)])
def test_loss_equals_published_one(box: TokenBox, name: str, ground_truth: bool) -> None:
    output, targets = golden_case(box)
    want = read("glmix_parts")[1][f"{name}.bb" + "_".join(map(str, box))]
    assert float(token_label_loss(output, targets, ground_truth=ground_truth)) == pytest.approx(float(want), rel=1e-12)


def test_loss_weights_scale_their_own_terms() -> None:
    output, targets = golden_case(TokenBox(1, 2, 4, 6))
    only_class = token_label_loss(output, targets, dense_weight=0)
    only_tokens = token_label_loss(output, targets, cls_weight=0, dense_weight=1)
    torch.testing.assert_close(token_label_loss(output, targets), only_class + 0.5 * only_tokens)


def test_loss_refuses_labels_of_another_grid() -> None:
    output, targets = golden_case(TokenBox(0, 0, 0, 0))
    with pytest.raises(ValueError, match="47 token labels, but the output has 49"):
        token_label_loss(output, targets[:, :, :-2])


def test_swapping_moves_the_box_between_mirrored_images_and_back() -> None:
    x = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 2, 5, 6)
    box = TokenBox(top=1, left=2, bottom=3, right=6)
    mixed = swap_box(x, box)
    assert (mixed[0, :, 1:3, 2:] == 2).all()
    assert mixed[0].sum() == 2 * 2 * box.area
    assert (mixed[1] == 1).all()
    torch.testing.assert_close(swap_box(mixed, box), x)


def test_box_beyond_the_map_is_cut_off() -> None:
    x = torch.stack([torch.zeros(1, 5, 6), torch.ones(1, 5, 6)])
    assert swap_box(x, TokenBox(0, 0, 8, 8))[0].eq(1).all()


def test_drawn_boxes_fit_a_grid_that_is_not_square() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = [sample_box((4, 9), generator=generator) for _ in range(400)]
    assert all(0 <= b.top <= b.bottom <= 4 and 0 <= b.left <= b.right <= 9 for b in boxes)
    assert max(b.bottom for b in boxes) == 4
    assert max(b.right for b in boxes) == 9


def test_drawn_box_covers_what_lam_leaves() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = [sample_box((70, 70), lam=0.75, generator=generator) for _ in range(50)]
    whole = [b for b in boxes if min(b.top, b.left) > 0 and max(b.bottom, b.right) < 70]
    assert whole
    assert {b.area for b in whole} == {34 * 34}  # half of 35, twice
    assert sample_box((7, 7), lam=1.0).area == 0


def test_same_generator_draws_the_same_box() -> None:
    draws = [sample_box((7, 7), generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert draws[0] == draws[1]


@pytest.mark.parametrize("grid", [(7, 7), (4, 9), (1, 1), (14, 14)])
def test_placed_box_is_the_sampled_one(grid: tuple[int, int]) -> None:
    for place in torch.rand(100, 3, generator=torch.Generator().manual_seed(0)):
        lam, *centre = place.tolist()
        edges = []
        for size, share in zip(grid, centre, strict=True):
            half, middle = int(size * (1 - lam) ** 0.5) // 2, int(size * share)
            edges.append((max(middle - half, 0), min(middle + half, size)))
        (top, bottom), (left, right) = edges
        assert [int(edge) for edge in place_box(place, grid)] == [top, left, bottom, right]


def test_drawn_place_is_deterministic_and_uniform() -> None:
    one, two = (draw_place(device="cpu", generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two)
    assert one.shape == (3,)
    generator = torch.Generator().manual_seed(0)
    places = torch.stack([draw_place(device="cpu", generator=generator) for _ in range(500)])
    torch.testing.assert_close(places.mean(0), torch.full((3,), 0.5), rtol=0, atol=0.05)
    with pytest.raises(ValueError, match=r"a place of shape \(4,\)"):
        place_box(torch.rand(4), (7, 7))


def test_box_of_tensors_does_what_one_of_numbers_does() -> None:
    numbers = TokenBox(1, 2, 4, 6)
    tensors = TokenBox(*(torch.tensor(edge) for edge in numbers))
    x = torch.randn(4, 3, 14, 21)
    torch.testing.assert_close(swap_box(x, tensors.scaled(2, 3)), swap_box(x, TokenBox(2, 6, 8, 18)))
    torch.testing.assert_close(swap_box(x, numbers.scaled(2)), swap_box(x, tensors.scaled(2)))
    assert int(tensors.area) == numbers.area == 12
    (output, targets), (other, _) = golden_case(numbers), golden_case(tensors)
    torch.testing.assert_close(token_label_loss(other, targets), token_label_loss(output, targets))


def test_terms_add_up_to_the_loss() -> None:
    output, targets = golden_case(TokenBox(1, 2, 4, 6))
    label, dense, truth = targets[:, :, 1], targets[:, :, 2:].mT, targets[:, :, 0]
    one, two = token_label_terms(output, label=label, dense=dense, truth=truth)
    torch.testing.assert_close(
        2 * one + 3 * two, token_label_loss(output, targets, cls_weight=2, dense_weight=3, ground_truth=True)
    )
