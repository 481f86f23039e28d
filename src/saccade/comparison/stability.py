"""Names of this module are in `saccade.statistics` now."""

from ..moved import moved, same_names

PLACES = {
    **same_names("saccade.statistics.stability", "Stability weigh"),
    **same_names("saccade.comparison.diverged", "LEARNED find_diverged"),
}
__getattr__ = moved(__name__, PLACES)
