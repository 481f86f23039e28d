"""Names of this module are in `saccade.statistics` now."""

from ..moved import moved, same_names

PLACES = {
    **same_names(
        "saccade.statistics.paired",
        "Seeds Terms from_differences paired_difference paired_scores summarize unpaired_difference",
    ),
    **same_names("saccade.statistics.macro", "macro_difference macro_values"),
    **same_names("saccade.statistics.jackknife", "pseudo_values statistic_difference"),
    **same_names("saccade.statistics.ratio", "Ratio ratio_interval"),
    **same_names("saccade.statistics.inputs", "read_scores read_series right_or_wrong"),
}
__getattr__ = moved(__name__, PLACES)
