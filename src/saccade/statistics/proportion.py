"""Wilson's interval of a proportion, valid also for 0% and 100%."""

import math
from statistics import NormalDist


def wilson(correct: int, count: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion; 0 to 1 without samples."""
    if not 0 <= correct <= count:
        raise ValueError(f"{correct} right predictions of {count} were given; the number must be from 0 to {count}")
    if count == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, part = correct / count, z * z / count
    middle = (share + part / 2) / (1 + part)
    reach = z / (1 + part) * math.sqrt(share * (1 - share) / count + part / (4 * count))
    # The ends are exact at none and at all, where rounding would leave a hair.
    return (0.0 if correct == 0 else middle - reach), (1.0 if correct == count else middle + reach)
