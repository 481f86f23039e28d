"""Names of this module are in `saccade.settings.values` now."""

from .settings.schema import RANGES as RANGES
from .settings.values import *  # noqa: F403
