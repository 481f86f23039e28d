"""Muon with batched orthogonalisation: separate matrices take a thousand small kernels a step."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from timm.optim import Muon as Single
from timm.optim.muon import _COEFFICIENTS, _is_suitable_for_muon, get_lr_scale, zeropower_via_newtonschulz
from torch import Tensor
from torch.optim.adamw import adamw


class Muon(Single):
    """timm's Muon, in full precision on the CPU; AdamW for parameters that are not matrices.

    The optimizer state has timm's names. Sharded weights use timm's own step, which takes NAdamW for parameters that
    are not matrices if the momentum is Nesterov's.
    """

    def __init__(self, params: Any, *, capturable: bool = False, **options: Any) -> None:
        super().__init__(params, **options)
        for group in self.param_groups:
            group["capturable"] = capturable  # in timm since 1.0.30

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights."""
        if any(hasattr(p, "device_mesh") for group in self.param_groups for p in group["params"]):
            return super().step(closure)  # shards cannot be batched
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[int, int, float], list[Tensor]] = defaultdict(list)
            others = []
            for p in group["params"]:
                if p.grad is None:
                    continue
                if self.state[p].setdefault("use_muon", bool(_is_suitable_for_muon(p))):
                    shape = matrix_of(p).shape
                    alike[min(shape), max(shape), get_lr_scale(shape, group["adjust_lr_fn"])].append(p)
                else:
                    others.append(p)
            for (*_, scale), params in alike.items():
                self._turn(params, group, scale)
            if others:
                self._adapt(others, group)
        return loss

    def _turn(self, params: list[Tensor], group: dict[str, Any], scale: float) -> None:
        """Update matrices of one shape, or its transpose, by their orthogonalised momenta."""
        lr = group["lr"]
        momenta = [self._remembered(p, "momentum_buffer") for p in params]
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        gradients = _gradients(params)
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        if group["nesterov"]:
            momenta = list(torch._foreach_lerp(gradients, momenta, group["momentum"]))
        turned = zeropower_via_newtonschulz(
            torch.stack([_wide(matrix_of(momentum)) for momentum in momenta]),
            group["ns_steps"],
            _COEFFICIENTS[group["ns_coefficients"]],
            eps=group["eps"],
            safety_factor=group["safety_factor"],
            dtype=torch.bfloat16 if params[0].is_cuda else torch.float32,  # few CPUs have fast bfloat16 products
        )
        moves = (turned.to(params[0].dtype) * (-lr * scale)).unbind()
        shaped = [_wide_like(move, matrix_of(p)).reshape(p.shape) for move, p in zip(moves, params, strict=True)]
        torch._foreach_add_(params, shaped)

    def _adapt(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters that are not matrices by AdamW."""
        captured = group["capturable"]
        steps = []
        for p in params:
            place = p.device if captured else torch.device("cpu")
            steps.append(self.state[p].setdefault("step", torch.zeros((), device=place)))
        beta1, beta2 = group["betas"]
        adamw(
            params,
            _gradients(params),
            [self._remembered(p, "exp_avg") for p in params],
            [self._remembered(p, "exp_avg_sq") for p in params],
            [],
            steps,
            fused=captured,
            capturable=captured,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"] * group.get("fallback_lr_scale", 1.0),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _remembered(self, p: Tensor, name: str) -> Tensor:
        state = self.state[p]
        if name not in state:
            state[name] = torch.zeros_like(p)
        return state[name]


def _gradients(params: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in params if p.grad is not None]


def matrix_of(x: Tensor) -> Tensor:
    """Return a weight as a matrix with one row an output."""
    return x.reshape(len(x), -1)


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if len(matrix) > matrix.shape[1] else matrix


def _wide_like(move: Tensor, matrix: Tensor) -> Tensor:
    return move if move.shape == matrix.shape else move.mT
