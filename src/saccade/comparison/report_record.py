"""Sections of a comparison's report that say how it was made: settings, checks, failures, how to repeat it."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, fold, paragraph, table
from .findings import Findings
from .plan import PlannedArm
from .report_words import NAME, score
from .writing import as_json

RAW = 300_000  # characters of result.json
REASON = 600


def setting_section(result: Findings) -> Section:
    """Return what differs between the arms, and what does not."""
    plan = result.plan
    rows = []
    for arm in plan.arms:
        name = shorten(arm.name, NAME)
        for setting, (base, own) in arm.changes.items():
            rows.append([name, tag("code", setting), _value(base), _value(own)])
        if not arm.changes:
            rows.append([name, _unchanged(arm, plan.reference), "", ""])
    changed = table(["Arm", "Setting", "Reference", "Arm's own"], rows, caption="What differs between the arms")
    notes = [paragraph(shorten(note, REASON), class_="note") for note in _notes(result)]
    return Section("settings", "What differs, what is equal", join(changed, _checks(result), *notes))


def _notes(result: Findings) -> list[str]:
    """Return what building the arms had to say, each once."""
    told: dict[str, list[str]] = {}
    for arm in result.plan.arms:
        for note in arm.notes:
            told.setdefault(note, []).append(shorten(arm.name, NAME))
    every = len([arm for arm in result.plan.arms if arm.failed is None])
    return [note if len(arms) >= every else f"{', '.join(arms)}: {note}" for note, arms in told.items()]


def _unchanged(arm: PlannedArm, reference: str) -> str:
    if arm.name == reference:
        return "the reference"
    if arm.identical_to is not None:
        return f"identical to {shorten(arm.identical_to, NAME)}"
    return "could not be built" if arm.failed is not None else "the same settings"


def _checks(result: Findings) -> Html:
    """Return each check once where it holds for all arms, and for each arm where it does not."""
    checked = [arm for arm in result.plan.arms if arm.checks]
    rows = []
    for number, first in enumerate(checked[0].checks if checked else ()):
        differing = [(arm.name, arm.checks[number]) for arm in checked if not arm.checks[number].equal]
        if not differing:
            rows.append([first.what, "equal", shorten(first.told, REASON)])
        for name, check in differing:
            rows.append([check.what, f"differs in {shorten(name, NAME)}", shorten(check.told, REASON)])
    if not rows:
        return paragraph("Nothing was checked: there is no second arm that could be built.", class_="note")
    about = "looked up for the first seed"
    if not result.plan.same_pictures:
        about += "; every seed has validation pictures of its own, the same in all arms"
    return table(["What", "In the arms", "How"], rows, caption=f"What is held equal, {about}")


def failure_section(result: Findings) -> Section | None:
    """Return the arms and seeds that failed, with their reasons; None if there are none."""
    rows = [
        [shorten(arm.name, NAME), "all" if seed < 0 else str(seed), shorten(reason, REASON)]
        for arm in result.arms
        for seed, reason in arm.failures.items()
    ]
    if not rows:
        return None
    told = "The rest was compared without them. The same command tries them again."
    failed = table(["Arm", "Seed", "Why"], rows, caption="Runs that did not finish")
    return Section("failures", "What failed", join(paragraph(told), failed))


def repeat_section(result: Findings, request: Mapping[str, Any] | None) -> Section:
    """Return how to repeat the comparison, and all its numbers.

    Args:
        result: of the comparison.
        request: what was asked, as comparison.json holds it; None if that cannot be read.
    """
    parts: list[Html] = []
    if request is not None:
        parts.append(paragraph("From the folder it was started in, into a new folder:"))
        parts.append(tag("pre", tag("code", repeat_command(result, request))))
        if only := _only_python(result, request):
            told = f"The command cannot say {', '.join(only)}: from Python give that to saccade.compare."
            parts.append(paragraph(told, class_="note"))
        asked = json.dumps(request, indent=1, ensure_ascii=False)
        parts.append(fold("What was asked (comparison.json)", tag("pre", tag("code", asked))))
    parts.append(fold("Every run", _runs(result)))
    parts.append(fold("The plan as printed", tag("pre", tag("code", str(result.plan)))))
    raw = as_json(result)
    whole = raw if len(raw) <= RAW else raw[:RAW] + "\n… the rest is in result.json"
    parts.append(fold("All numbers (result.json)", tag("pre", tag("code", whole))))
    return Section("repeat", "To repeat it", join(*parts))


def repeat_command(result: Findings, request: Mapping[str, Any]) -> str:
    """Return the command that asks the same again in another folder."""
    words = ["saccade", "compare", *([str(request["data"])] if request.get("data") else [])]
    for name, text in request["arms"].items():
        words += ["--arm", text if text == name else f"{name}:={text}"]
    seeds = request["seeds"]
    words += ["--seeds", str(len(seeds)) if seeds == list(range(len(seeds))) else ",".join(map(str, seeds))]
    words += ["--recipe", str(request["recipe"])] if request.get("recipe") else []
    for name, value in request["settings"].items():
        words += ["--task", str(value)] if name == "task" else ["--set", f"{name}={_written(value)}"]
    words += ["--budget", f"{request['budget']:.0f}s"] if request.get("budget") is not None else []
    words += ["--metric", result.metric] if result.metric != result.primary else []
    differences = [judged.difference for judged in result.differences.values()]
    words += ["--margin", f"{differences[0].margin:g}"] if differences and differences[0].margin is not None else []
    words += ["--seeds-fixed"] if any(d.design == "fixed" for d in differences) else []
    return shlex.join([*words, "--out", f"{result.path}-again"])


def _only_python(result: Findings, request: Mapping[str, Any]) -> list[str]:
    """Return what was asked and has no flag."""
    found, seeds, spec = [], request["seeds"], result.spec(result.metric)
    if len(seeds) == 1 and seeds != [0]:
        found.append(f"seeds={seeds}")
    for name, judged in result.differences.items():
        too_few = any(note.startswith(f"{name}: fewer than two seeds") for note in result.notes)
        if judged.difference.design == "unpaired" and not too_few:
            found.append("paired=False")
        if spec is None or judged.difference.larger_is_better != spec.larger_is_better:
            found.append(f"larger_is_better={judged.difference.larger_is_better}")
    return list(dict.fromkeys(found))


def _runs(result: Findings) -> Html:
    rows = [
        [shorten(arm.name, NAME), str(seed), score(result, value), _inside(arm.runs.get(seed), result.path)]
        for arm in result.arms
        for seed, value in zip(arm.seeds, arm.scores, strict=True)
    ]
    return table(["Arm", "Seed", result.metric, "Folder"], rows, caption="Every finished run", numeric=(1, 2))


def _inside(path: Path | None, folder: Path) -> str:
    if path is None:
        return ""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _written(value: Any) -> str:
    """Return a setting as YAML that is read as the same."""
    return yaml.safe_dump(value, default_flow_style=True, width=100_000).removesuffix("\n").removesuffix("\n...")


def _value(value: Any) -> str:
    return shorten(
        "none" if value is None else value if isinstance(value, str) else json.dumps(value, default=str), 300
    )
