import pytest
import torch
from torch import Tensor

from saccade.layers.token_label import TokenBox, TokenLabelOutput, sample_box, swap_box, token_label_loss
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
    with pytest.raises(ValueError, match="47 token labels, the output has 49"):
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
