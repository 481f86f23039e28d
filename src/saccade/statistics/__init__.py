"""Statistics of differences between arms: intervals, tests and verdicts over seeds and samples.

A *seed* is one training, or whatever else was repeated; a *sample* is one image, text or row of the test set. Scores
are arrays of seeds x samples, from anywhere: nothing here imports PyTorch or another part of saccade.
"""

from .bootstrap import Estimate, Resampled, ResampledDifference, resample, resample_means
from .difference import Difference, Verdict
from .exact import mcnemar, sign_flip, sign_test
from .folds import Folds
from .jackknife import statistic_difference
from .macro import macro_difference
from .multiplicity import Judgement, alpha_share, holm, judge
from .paired import paired_difference, paired_scores, unpaired_difference
from .planning import plan_detectable
from .proportion import wilson
from .ratio import Ratio, ratio_interval
from .spread import Spread
from .stability import Stability, weigh

__all__ = [
    "Difference",
    "Estimate",
    "Folds",
    "Judgement",
    "Ratio",
    "Resampled",
    "ResampledDifference",
    "Spread",
    "Stability",
    "Verdict",
    "alpha_share",
    "holm",
    "judge",
    "macro_difference",
    "mcnemar",
    "paired_difference",
    "paired_scores",
    "plan_detectable",
    "ratio_interval",
    "resample",
    "resample_means",
    "sign_flip",
    "sign_test",
    "statistic_difference",
    "unpaired_difference",
    "weigh",
    "wilson",
]
