"""The result of a comparison: findings as JSON, Markdown and text."""

import json
from dataclasses import fields
from typing import Any

from ...report.document import Block, Text, to_markdown
from ...report.page import show_table
from ...report.plain import to_json
from ..conclude.findings import Findings
from .tables import at_equal_time, classes, costs, differences, disagreements, disagreements_text, tuning
from .words import about, title

IMAGES = 3  # most gains and losses of an arm, each
HIDDEN = {"spread"}  # internal fields


class Comparison(Findings):
    """The result of a comparison; the attributes are those of `Findings`."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        found = {item.name: to_json(getattr(self, item.name), hidden=HIDDEN) for item in fields(self)}
        return {"format": 1, **found, "verdicts": {arm.name: to_json(self.verdict(arm.name)) for arm in self.arms}}

    def to_json(self) -> str:
        """Return everything as JSON text; non-finite numbers are null."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    def to_markdown(self, *, plan: bool = False) -> str:
        """Return the verdicts, then details, and with `plan` the plan."""
        lines = "\n".join(f"- **{name}**: {verdict}" for name, verdict in self._verdicts())
        notes = "\n".join(f"- {note}" for note in self.notes)
        parts = [f"# {title(self)}", lines, *([notes] if notes else []), f"{about(self)}."]
        samples = [table for table, _ in disagreements(self, IMAGES)]
        sections: dict[str, list[Block]] = {
            "The differences": differences(self),
            "Costs": [costs(self), *at_equal_time(self)],
            "Classes": classes(self, brief=True),
            "Samples": [disagreements_text(self), *samples] if samples else [],
            "Tuning": tuning(self.tuned),
            "Plan": [Text(f"```text\n{self.plan}\n```")] if plan else [],
        }
        parts += [f"## {name}\n\n{to_markdown(blocks)}" for name, blocks in sections.items() if blocks]
        return "\n\n".join(parts) + "\n"

    def _verdicts(self) -> list[tuple[str, str]]:
        return [(arm.name, str(self.verdict(arm.name))) for arm in self.arms if arm.name != self.reference]

    def __str__(self) -> str:
        return "\n".join(f"{name}: {verdict}" for name, verdict in self._verdicts())

    def __repr__(self) -> str:
        verdicts = "; ".join(f"{name}: {verdict}" for name, verdict in self._verdicts())
        return f"<Comparison {self.path}: {verdicts or 'nothing to compare'}>"

    def _repr_html_(self) -> str:
        """Return the notebook representation: the verdict on every arm."""
        return show_table(f"{self.metric} against {self.reference}, {self.path}", self._verdicts())
