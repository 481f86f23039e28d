"""All rules by which settings are decided, in order: a later one has the last word, but for what the user gave."""

from collections.abc import Iterable

from .asking import ASKED
from .compared import COMPARED
from .decisions import Rule
from .fitting import FOUND, TIMED, TRIED


def rules(task: Iterable[Rule] = ()) -> tuple[Rule, ...]:
    """Return all rules, those of a task among them."""
    return (*ASKED, *TRIED, *TIMED, *COMPARED, *task, *FOUND)
