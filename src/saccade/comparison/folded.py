"""Names of this module are in `saccade.statistics` now."""

from ..moved import moved, same_names

__getattr__ = moved(__name__, same_names("saccade.statistics.folds", "Folds SHARED folded_spread"))
