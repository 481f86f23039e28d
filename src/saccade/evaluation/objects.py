"""What a detector's answers come to: its metrics, and how much light noise and blur take of them."""

from .bootstrap import Resampled
from .masks import MaskJudge

RESAMPLES = 400  # average precision reads every answer again for each


class ObjectJudge(MaskJudge):
    """Measures one detector; what is done to images leaves objects where they are, as for masks."""

    def numbers(self, *, seed: int, resamples: int) -> dict[str, Resampled]:
        """Return every number, over all samples and over fewer resamples of them than of a mean."""
        return super().numbers(seed=seed, resamples=min(resamples, RESAMPLES))
