"""All rules that decide settings, in order: later ones override earlier ones, but not what the user gave."""

from collections.abc import Iterable

from .compared import COMPARED
from .decisions import Rule
from .fitting import FOUND, TIMED, TRIED
from .machine_rules import MEMORY_RULES
from .request_rules import REQUEST_RULES


def rules(task: Iterable[Rule] = ()) -> tuple[Rule, ...]:
    """Return all rules, those of a task among them."""
    return (*REQUEST_RULES, *TRIED, *TIMED, *COMPARED, *task, *FOUND, *MEMORY_RULES)
