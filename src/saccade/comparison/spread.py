"""Names of this module are in `saccade.statistics` now."""

from ..moved import moved, same_names

NAMES = """
    MeanSquares NODES SMALLEST_P Spread fixed_spread joined_freedom mean_squares paired_spread unpaired_spread
"""
__getattr__ = moved(__name__, same_names("saccade.statistics.spread", NAMES))
