"""FGSM and PGD within an L-infinity ball; the worst point of each image counts.

A point with a wrong prediction is worse than any with a correct one; among equals, the higher loss is worse. FGSM's
points include the clean image, and PGD's include FGSM's and those of smaller epsilons, so that accuracy never increases
from clean to FGSM to PGD, or with epsilon.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...data.draws import generator

Ask = Callable[[Tensor], Tensor]  # images from 0 to 1, B, C, H, W -> logits, B, K
START = 0x5A17
ZERO = "attack.zero_gradient"  # share of images with zero gradient


@dataclass(frozen=True)
class Attack:
    """Parameters of an attack."""

    epsilon: float = 1.0  # largest change of a value, in 1/255
    steps: int = 10  # PGD steps from each start
    step: float = 0.25  # step size, relative to epsilon
    # PGD starts: the worst point so far, then random ones; they alternate between the cross-entropy and the margin to
    # the nearest wrong class
    restarts: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 255:
            raise ValueError(
                f"epsilon {self.epsilon:g}: it is in units of 1/255, and must be above 0 and at most 255, such as 1"
            )
        if self.steps < 1 or self.restarts < 1 or self.step <= 0:
            raise ValueError(
                f"steps={self.steps}, restarts={self.restarts} and step={self.step:g}: PGD needs at least one step "
                "of positive length and at least one restart"
            )

    @property
    def reach(self) -> float:
        """Largest change of a value, from 0 to 1."""
        return self.epsilon / 255


@dataclass
class Worst:
    """The worst points found so far for each image of a batch."""

    images: Tensor  # from 0 to 1, B, C, H, W
    wrong: Tensor  # whether the prediction there is wrong, B
    loss: Tensor  # cross-entropy there, B

    def offer(self, places: Tensor, images: Tensor, logits: Tensor, valid: Tensor) -> None:
        """Update with points that are worse; `places` are the images' indices in the batch."""
        wrong, loss = ~is_right(logits, valid), cross_entropy(logits, valid)
        worse = (wrong & ~self.wrong[places]) | ((wrong == self.wrong[places]) & (loss > self.loss[places]))
        taken = places[worse]
        self.images[taken] = images[worse]
        self.wrong[taken], self.loss[taken] = wrong[worse], loss[worse]

    def copy(self) -> "Worst":
        """Return an independent copy."""
        return Worst(self.images.clone(), self.wrong.clone(), self.loss.clone())

    def join(self, other: "Worst") -> "Worst":
        """Return the worse point of two for each image."""
        worse = (other.wrong & ~self.wrong) | ((other.wrong == self.wrong) & (other.loss > self.loss))
        images = torch.where(worse[:, None, None, None], other.images, self.images)
        return Worst(images, self.wrong | other.wrong, torch.where(worse, other.loss, self.loss))


def attack_batch(
    ask: Ask,
    images: Tensor,
    valid: Tensor,
    *,
    attacks: Sequence[Attack],
    right: Tensor,
    rng_keys: Sequence[int],
) -> dict[str, Tensor]:
    """Attack a batch in full precision.

    Args:
        ask: the differentiable model.
        images: uint8 B, C, H, W.
        valid: the right classes, B, K bool.
        right: whether clean predictions are right, B bool; the others are not attacked.
        rng_keys: the images' random keys, for random starts.

    Returns:
        Whether predictions are right under `fgsm.E` and `pgd.E` for each epsilon, and which images have zero gradient.
    """

    kept = right.nonzero()[:, 0]
    found: dict[str, Tensor] = {ZERO: torch.zeros_like(right)}
    for attack in attacks:
        found |= {f"{name}.{attack.epsilon:g}": torch.zeros_like(right) for name in ("fgsm", "pgd")}
    if not len(kept):
        return found
    clean, valid = images.to(right.device)[kept].float() / 255, valid[kept]
    plain, gradient = clean_gradient(ask, clean, valid)
    found[ZERO][kept] = gradient.flatten(1).abs().amax(1) == 0
    worst = plain
    for attack in sorted(attacks, key=lambda attack: attack.epsilon):
        once = fgsm(ask, clean, valid, attack, start=plain, gradient=gradient)
        found[f"fgsm.{attack.epsilon:g}"][kept] = ~once.wrong
        start, own = once.join(worst), [rng_keys[int(place)] for place in kept]
        worst = pgd(ask, clean, valid, attack, start=start, rng_keys=own)
        found[f"pgd.{attack.epsilon:g}"][kept] = ~worst.wrong
    return found


def clean_gradient(ask: Ask, clean: Tensor, valid: Tensor) -> tuple[Worst, Tensor]:
    """Return the clean images as worst points, and the gradient of their loss.

    Args:
        clean: images from 0 to 1, B, C, H, W.
        valid: the right classes, B, K bool; at least one an image.
    """
    logits, gradient = _gradient(ask, clean, valid, cross_entropy)
    return Worst(clean.clone(), ~is_right(logits, valid), cross_entropy(logits, valid)), gradient


def fgsm(ask: Ask, clean: Tensor, valid: Tensor, attack: Attack, *, start: Worst, gradient: Tensor) -> Worst:
    """FGSM: one step of size epsilon along the sign of the loss' gradient.

    Args:
        clean: images from 0 to 1, B, C, H, W.
        valid: the right classes, B, K bool.
        start: worst points of `clean_gradient`.
        gradient: gradient at the clean images.
    """
    worst = start.copy()
    left = (~worst.wrong).nonzero()[:, 0]  # images with wrong predictions are done
    if len(left):
        moved = (clean[left] + attack.reach * gradient[left].sign()).clamp(0, 1)
        with torch.no_grad():
            worst.offer(left, moved, ask(moved), valid[left])
    return worst


def pgd(ask: Ask, clean: Tensor, valid: Tensor, attack: Attack, *, start: Worst, rng_keys: Sequence[int]) -> Worst:
    """PGD: small steps along the sign of the gradient from several starts, until the prediction is wrong.

    Args:
        clean: images from 0 to 1, B, C, H, W.
        valid: the right classes, B, K bool.
        start: worst points so far, including FGSM's.
        rng_keys: the images' random keys, for random starts.
    """
    worst, first = start.copy(), start.images.clone()
    for restart in range(attack.restarts):
        left = (~worst.wrong).nonzero()[:, 0]
        if not len(left):
            break
        if restart == 0:
            at = first[left]
        else:
            at = _random_start(clean[left], attack, [rng_keys[int(place)] for place in left], restart)
        for _ in range(attack.steps):
            logits, gradient = _gradient(ask, at, valid[left], (cross_entropy, margin)[restart % 2])
            worst.offer(left, at, logits, valid[left])
            going = ~worst.wrong[left]
            left, at, gradient = left[going], at[going], gradient[going]
            if not len(left):
                break
            base = clean[left]
            at = at + attack.step * attack.reach * gradient.sign()
            at = (base + (at - base).clamp(-attack.reach, attack.reach)).clamp(0, 1)
        else:
            with torch.no_grad():
                worst.offer(left, at, ask(at), valid[left])
    return worst


def is_right(logits: Tensor, valid: Tensor) -> Tensor:
    """Return whether predictions are right, B bool; NaN counts as wrong."""
    best = valid.gather(1, logits.argmax(1, keepdim=True))[:, 0]
    return best & logits.isfinite().all(1)


def cross_entropy(logits: Tensor, valid: Tensor) -> Tensor:
    """Return minus the log probability of the right classes, B."""
    inside = logits.masked_fill(~valid, -torch.inf).logsumexp(1)
    return logits.logsumexp(1) - inside


def margin(logits: Tensor, valid: Tensor) -> Tensor:
    """Return the margin of the best wrong class over the best right one, B, whose gradient does not saturate."""
    wrong = logits.masked_fill(valid, -torch.inf).amax(1)
    return wrong - logits.masked_fill(~valid, -torch.inf).amax(1)


def _gradient(ask: Ask, at: Tensor, valid: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return logits and the loss' gradient at images; NaN is replaced by zero."""
    with torch.enable_grad():
        leaf = at.detach().requires_grad_()
        logits = ask(leaf)
        if not logits.requires_grad:
            return logits.detach(), torch.zeros_like(at)
        (gradient,) = torch.autograd.grad(loss(logits, valid).sum(), leaf, allow_unused=True)
    if gradient is None:
        return logits.detach(), torch.zeros_like(at)
    return logits.detach(), torch.nan_to_num(gradient, 0, 0, 0)


def _random_start(clean: Tensor, attack: Attack, rng_keys: Sequence[int], restart: int) -> Tensor:
    """Return points drawn uniformly from the ball by each image's random key."""
    draws = [
        torch.rand(clean.shape[1:], generator=generator(rng_key, START, restart, round(1000 * attack.epsilon)))
        for rng_key in rng_keys
    ]
    moved = clean + attack.reach * (2 * torch.stack(draws).to(clean.device) - 1)
    return moved.clamp(0, 1)
