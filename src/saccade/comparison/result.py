"""What a comparison returns: its findings, which can be read and written."""

from typing import Any

from .findings import ArmResult, ClassDifference, Cost, Disagreement, Findings
from .writing import as_dict, as_json, as_markdown, verdict_lines

__all__ = ["ArmResult", "ClassDifference", "Comparison", "Cost", "Disagreement"]


class Comparison(Findings):
    """What a comparison found, with how it is written down; its attributes are those of `Findings`."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        return as_dict(self)

    def to_json(self) -> str:
        """Return everything as JSON."""
        return as_json(self)

    def to_markdown(self) -> str:
        """Return what a reader wants to know first, as Markdown."""
        return as_markdown(self)

    def __str__(self) -> str:
        return "\n".join(verdict_lines(self))
