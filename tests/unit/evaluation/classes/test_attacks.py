import pytest
import torch
from torch import Tensor

from saccade.evaluation.classes.attacks import Attack, clean_gradient, cross_entropy, fgsm, is_right, pgd

CLEAN = torch.randint(256, (24, 3, 6, 6), generator=torch.Generator().manual_seed(1)) / 255


class Toy:
    """Two layers of fixed random weights."""

    def __init__(self, seed: int = 0, classes: int = 4) -> None:
        random = torch.Generator().manual_seed(seed)
        self.first = torch.randn(108, 32, generator=random) / 2
        self.last = torch.randn(32, classes, generator=random)

    def __call__(self, images: Tensor) -> Tensor:
        return torch.sin((images.flatten(1) - 0.5) @ self.first) @ self.last


def labelled(ask) -> Tensor:
    """Take the model's own answers for the truth, but for the first four images."""
    answers = ask(CLEAN).argmax(1)
    answers[:4] = (answers[:4] + 1) % 4
    return torch.nn.functional.one_hot(answers, 4).bool()


def attack_all(ask, valid, attack, clean=CLEAN):
    plain, gradient = clean_gradient(ask, clean, valid)
    once = fgsm(ask, clean, valid, attack, start=plain, gradient=gradient)
    return plain, once, pgd(ask, clean, valid, attack, start=once, rng_keys=list(range(len(clean))))


def test_loss_rises_and_accuracy_falls_from_clean_to_fgsm_to_pgd():
    ask = Toy()
    valid = labelled(ask)
    plain, once, many = attack_all(ask, valid, Attack(epsilon=8))
    assert plain.loss.mean() < once.loss.mean() < many.loss.mean()
    assert (once.wrong | ~plain.wrong).all()  # wrong stays wrong
    assert (many.wrong | ~once.wrong).all()
    assert plain.wrong.sum() == 4
    assert plain.wrong.sum() < once.wrong.sum() < many.wrong.sum()


@pytest.mark.parametrize("epsilon", [1, 8, 64])
def test_points_stay_within_epsilon_and_the_images_range(epsilon):
    ask = Toy()
    for found in attack_all(ask, labelled(ask), Attack(epsilon=epsilon))[1:]:
        assert (found.images - CLEAN).abs().max() <= epsilon / 255 + 1e-6
        assert found.images.min() >= 0
        assert found.images.max() <= 1


def test_what_is_reported_is_what_the_model_says_at_the_points():
    ask = Toy()
    valid = labelled(ask)
    for found in attack_all(ask, valid, Attack(epsilon=8)):
        logits = ask(found.images)
        assert torch.equal(found.wrong, ~is_right(logits, valid))
        assert torch.allclose(found.loss, cross_entropy(logits, valid), atol=1e-5)


class Masked(Toy):
    """Answers are flat around every value that bytes can have, which is where images are."""

    def __call__(self, images: Tensor) -> Tensor:
        level = (images * 255).round().detach() / 255
        return super().__call__(torch.where((images - level).abs() < 0.3 / 255, level, images))


def test_masked_gradient_fools_fgsm_and_is_exposed_by_pgd_with_restarts():
    ask, attack = Masked(), Attack(epsilon=8)
    valid = torch.nn.functional.one_hot(ask(CLEAN).argmax(1), 4).bool()
    plain, gradient = clean_gradient(ask, CLEAN, valid)
    assert not gradient.any()
    once = fgsm(ask, CLEAN, valid, attack, start=plain, gradient=gradient)
    assert not once.wrong.any()  # as if it could not be attacked
    words = list(range(len(CLEAN)))
    assert not pgd(ask, CLEAN, valid, Attack(epsilon=8, restarts=1), start=once, rng_keys=words).wrong.any()
    assert pgd(ask, CLEAN, valid, attack, start=once, rng_keys=words).wrong.float().mean() > 0.5


def test_saturated_shares_are_exposed_by_the_margin():
    toy = Toy()

    def ask(images):
        return 1e4 * toy(images)  # the right share is 1 in float32, so the cross-entropy is flat

    valid = torch.nn.functional.one_hot(ask(CLEAN).argmax(1), 4).bool()
    _, once, many = attack_all(ask, valid, Attack(epsilon=8))
    assert not once.wrong.any()
    assert many.wrong.float().mean() > 0.5


def test_random_starts_do_not_depend_on_the_rest_of_the_batch():
    ask = Toy()
    valid = labelled(ask)
    attack = Attack(epsilon=4, restarts=3)
    whole = attack_all(ask, valid, attack)[2]
    start, gradient = clean_gradient(ask, CLEAN[9:12], valid[9:12])
    start = fgsm(ask, CLEAN[9:12], valid[9:12], attack, start=start, gradient=gradient)
    part = pgd(ask, CLEAN[9:12], valid[9:12], attack, start=start, rng_keys=[9, 10, 11])
    assert torch.equal(part.wrong, whole.wrong[9:12])
    assert torch.allclose(part.images, whole.images[9:12], atol=1e-6)


def test_one_of_several_right_classes_is_enough():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    several = torch.tensor([[True, True, False]])
    assert is_right(logits, several).all()
    assert cross_entropy(logits, several).item() == pytest.approx(
        -logits.softmax(1)[0, :2].sum().log().item(), abs=1e-6
    )


@pytest.mark.parametrize("wrong", [{"epsilon": 0}, {"epsilon": 300}, {"steps": 0}, {"restarts": 0}])
def test_attacks_that_do_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must be above|needs at least"):
        Attack(**wrong)
