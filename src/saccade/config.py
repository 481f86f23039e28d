"""Names of this module are in `saccade.settings` now."""

from .settings import *  # noqa: F403
from .settings.text import RETIRED as RETIRED
