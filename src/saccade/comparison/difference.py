"""Names of this module are in `saccade.statistics` now."""

from ..moved import moved, same_names

PLACES = {
    **same_names("saccade.statistics.difference", "Difference Kind MATTERS Verdict decide same_everywhere_hides"),
    **same_names("saccade.statistics.multiplicity", "FIRST_LOOK Judgement judge"),
    **same_names("saccade.statistics.planning", "MANY_SEEDS MOST_SEEDS out_of_reach plan_detectable"),
    "check_level": "saccade.statistics.inputs.check_level",
    "spent": "saccade.statistics.multiplicity.alpha_share",
}
__getattr__ = moved(__name__, PLACES)
