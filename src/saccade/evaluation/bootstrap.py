"""Names of this module are in `saccade.statistics` now."""

from ..moved import moved, same_names

NAMES = """
    BLOCK Estimate FEWEST LEVEL RECORDS RESAMPLES Resampled Statistic average estimate fewer group_mean interval mean_of
    one_hot over_all resample resample_means
"""
PLACES = {
    **same_names("saccade.statistics.bootstrap", NAMES),
    "Difference": "saccade.statistics.bootstrap.ResampledDifference",
    "mcnemar": "saccade.statistics.exact.mcnemar_counts",
    "statistic_of": "saccade.evaluation.judge.statistic_of",
}
__getattr__ = moved(__name__, PLACES)
