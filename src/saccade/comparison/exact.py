"""Names of this module are in `saccade.statistics` now."""

from ..moved import moved, same_names

PLACES = {
    **same_names("saccade.statistics.exact", "DRAWN ENUMERATED mcnemar sign_flip"),
    **same_names("saccade.statistics.multiplicity", "holm holm_levels"),
}
__getattr__ = moved(__name__, PLACES)
