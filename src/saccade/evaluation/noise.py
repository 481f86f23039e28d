"""Light noise and blur, each drawn anew several times: the perturbations of Context Broadcasting's table 9."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from .robust import Condition

REPEATS = 5
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # H, W, C from 0 to 255 and draws -> the same


@dataclass(frozen=True)
class Perturbation:
    """One way to spoil an image a little."""

    name: str  # among the metrics
    title: str  # in words
    change: Change  # does it
    drawn: bool = True  # whether it is drawn, so that it is repeated

    @property
    def repeats(self) -> int:
        """How often it is drawn."""
        return REPEATS if self.drawn else 1


def perturbations() -> list[Condition]:
    """Return every perturbation in all its repeats."""
    return [
        Condition(f"noise.{one.name}.{repeat}", one.title, _change(one, repeat))
        for one in PERTURBATIONS
        for repeat in range(one.repeats)
    ]


def _change(one: Perturbation, repeat: int) -> Callable[..., np.ndarray]:
    number = [other.name for other in PERTURBATIONS].index(one.name)

    def change(image: np.ndarray, *, rng_key: int) -> np.ndarray:
        draws = np.random.default_rng([rng_key, number, repeat, 9])
        return np.clip(np.rint(one.change(image.astype(np.float32), draws)), 0, 255).astype(np.uint8)

    return change


def _gaussian(sigma: float) -> Change:
    return lambda x, draws: x + sigma * draws.standard_normal(x.shape, dtype=np.float32)


def _blur(sigma: float) -> Change:
    return lambda x, _: ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="reflect")


PERTURBATIONS = (
    Perturbation("shot", "shot noise", lambda x, draws: draws.poisson(x).astype(np.float32)),
    Perturbation("gaussian_5", "Gaussian noise, sigma 5", _gaussian(5)),
    Perturbation("gaussian_10", "Gaussian noise, sigma 10", _gaussian(10)),
    Perturbation("blur_1", "Gaussian blur, sigma 1", _blur(1), drawn=False),
    Perturbation("blur_2", "Gaussian blur, sigma 2", _blur(2), drawn=False),
)
