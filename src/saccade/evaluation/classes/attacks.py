"""FGSM and PGD within an L-infinity ball, each image's worst case kept.

An attack's outcome is the worst point found for each image: a wrong answer counts for more than any loss, and among
equals the higher loss. The clean image is among FGSM's points, and FGSM's among PGD's, so that for every image
PGD's answer is right only if FGSM's is, and that only if the clean one is. What PGD found within a smaller epsilon is
among its points for a larger one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...data.draws import generator

Ask = Callable[[Tensor], Tensor]  # images from 0 to 1, B, C, H, W -> logits, B, K
START = 0x5A17
ZERO = "attack.zero_gradient"  # share of images at which the loss has none


@dataclass(frozen=True)
class Attack:
    """How images are attacked."""

    epsilon: float = 1.0  # the most a value may change, in 255ths
    steps: int = 10  # of PGD from each start
    step: float = 0.25  # how far a step goes, as a share of epsilon
    # starts of PGD: the worst point so far, then random ones; the first follows the cross-entropy, the next the margin
    # to the nearest wrong class, and so on in turn
    restarts: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 255:
            raise ValueError(f"epsilon {self.epsilon:g} was given; it is in 255ths, above 0 and up to 255, such as 1")
        if self.steps < 1 or self.restarts < 1 or self.step <= 0:
            raise ValueError(
                f"steps={self.steps}, restarts={self.restarts} and step={self.step:g} were given; PGD takes at least "
                "one step of some length from at least one start"
            )

    @property
    def reach(self) -> float:
        """The most a value may change, from 0 to 1."""
        return self.epsilon / 255


@dataclass
class Worst:
    """The worst points found so far for a batch."""

    images: Tensor  # from 0 to 1, B, C, H, W
    wrong: Tensor  # whether the answer there is wrong, B
    loss: Tensor  # the cross-entropy there, B

    def offer(self, places: Tensor, images: Tensor, logits: Tensor, valid: Tensor) -> None:
        """Take points where they are worse; `places` are those of `images` in the batch."""
        wrong, loss = ~is_right(logits, valid), cross_entropy(logits, valid)
        worse = (wrong & ~self.wrong[places]) | ((wrong == self.wrong[places]) & (loss > self.loss[places]))
        taken = places[worse]
        self.images[taken] = images[worse]
        self.wrong[taken], self.loss[taken] = wrong[worse], loss[worse]

    def copy(self) -> "Worst":
        """Return one that can be changed by itself."""
        return Worst(self.images.clone(), self.wrong.clone(), self.loss.clone())

    def join(self, other: "Worst") -> "Worst":
        """Return the worse of two for each image."""
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
        ask: the model, which must be differentiable.
        images: uint8 B, C, H, W.
        valid: the right classes, B, K bool.
        right: which clean answers are right, B bool; the others stay wrong.
        rng_keys: one an image, which random starts are functions of.

    Returns:
        Which answers are right under `fgsm.E` and `pgd.E` for each epsilon, and which right ones have no gradient.
    """

    kept = right.nonzero()[:, 0]
    found: dict[str, Tensor] = {ZERO: torch.zeros_like(right)}
    for attack in attacks:
        found |= {f"{name}.{attack.epsilon:g}": torch.zeros_like(right) for name in ("fgsm", "pgd")}
    if not len(kept):
        return found
    clean, valid = images.to(right.device)[kept].float() / 255, valid[kept]
    plain, gradient = look(ask, clean, valid)
    found[ZERO][kept] = gradient.flatten(1).abs().amax(1) == 0
    worst = plain
    for attack in sorted(attacks, key=lambda attack: attack.epsilon):
        once = fgsm(ask, clean, valid, attack, start=plain, gradient=gradient)
        found[f"fgsm.{attack.epsilon:g}"][kept] = ~once.wrong
        start, own = once.join(worst), [rng_keys[int(place)] for place in kept]
        worst = pgd(ask, clean, valid, attack, start=start, rng_keys=own)
        found[f"pgd.{attack.epsilon:g}"][kept] = ~worst.wrong
    return found


def look(ask: Ask, clean: Tensor, valid: Tensor) -> tuple[Worst, Tensor]:
    """Return the clean images as the worst so far, and the gradient of their loss, which is zero where it is hidden.

    Args:
        clean: images from 0 to 1, B, C, H, W.
        valid: the right classes, B, K bool; at least one an image.
    """
    logits, gradient = _gradient(ask, clean, valid, cross_entropy)
    return Worst(clean.clone(), ~is_right(logits, valid), cross_entropy(logits, valid)), gradient


def fgsm(ask: Ask, clean: Tensor, valid: Tensor, attack: Attack, *, start: Worst, gradient: Tensor) -> Worst:
    """Move every value by epsilon along the sign of the loss' gradient, once.

    Args:
        clean: images from 0 to 1, B, C, H, W.
        valid: the right classes, B, K bool.
        start: the worst so far, as `look` returned it.
        gradient: at the clean images.
    """
    worst = start.copy()
    left = (~worst.wrong).nonzero()[:, 0]  # an answer that is wrong already stays wrong
    if len(left):
        moved = (clean[left] + attack.reach * gradient[left].sign()).clamp(0, 1)
        with torch.no_grad():
            worst.offer(left, moved, ask(moved), valid[left])
    return worst


def pgd(ask: Ask, clean: Tensor, valid: Tensor, attack: Attack, *, start: Worst, rng_keys: Sequence[int]) -> Worst:
    """Take many small steps along the sign of the gradient from several starts; stop where an answer is wrong.

    Args:
        clean: images from 0 to 1, B, C, H, W.
        valid: the right classes, B, K bool.
        start: the worst so far, FGSM's point included.
        rng_keys: one an image, which its random starts are functions of.
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
    """Tell which answers are right, B bool; one that is no number is wrong."""
    best = valid.gather(1, logits.argmax(1, keepdim=True))[:, 0]
    return best & logits.isfinite().all(1)


def cross_entropy(logits: Tensor, valid: Tensor) -> Tensor:
    """Return minus the logarithm of the share of the right classes, B."""
    inside = logits.masked_fill(~valid, -torch.inf).logsumexp(1)
    return logits.logsumexp(1) - inside


def margin(logits: Tensor, valid: Tensor) -> Tensor:
    """Return how far the best wrong class is above the best right one, B; it has a gradient where shares saturate."""
    wrong = logits.masked_fill(valid, -torch.inf).amax(1)
    return wrong - logits.masked_fill(~valid, -torch.inf).amax(1)


def _gradient(ask: Ask, at: Tensor, valid: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the logits and the loss' gradient at images; one that is no number counts as none."""
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
    """Return points drawn evenly from the ball, each image's by its own rng_key."""
    draws = [
        torch.rand(clean.shape[1:], generator=generator(rng_key, START, restart, round(1000 * attack.epsilon)))
        for rng_key in rng_keys
    ]
    moved = clean + attack.reach * (2 * torch.stack(draws).to(clean.device) - 1)
    return moved.clamp(0, 1)
