"""Make docs/claims.md of what the claims' runs gave: every interval is computed anew from `results/*/scores.npz`.

python benchmarks/claims/table.py          # write the table between its marks in docs/claims.md
python benchmarks/claims/table.py --check  # end with status 1 if the table there is another one
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from saccade.statistics import Difference, paired_difference, plan_detectable

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "claims.md"
BEGIN, END = "<!-- made by benchmarks/claims/table.py -->", "<!-- end -->"
CENTRAL, OTHERS = 5, 31  # claims, of which the first share four fifths of ALPHA
ALPHA = 0.05
SAMPLES = 10_000
FEWEST = 5  # seeds that all arms must have finished before anything is computed
MOST_SEEDS = 10_000  # as good as any number


@dataclass(frozen=True)
class Found:
    """What a claim's runs gave.

    Attributes:
        seeds: that both arms have finished.
        planned: seeds that the claim's file asks for.
        scores: mean accuracy of the two arms, the one that is to be better first.
        difference: between them; None where too few seeds have ended.
    """

    seeds: tuple[int, ...]
    planned: int
    scores: tuple[float, float] | None = None
    difference: Difference | None = None

    @property
    def verdict(self) -> str:
        """What the interval says of the claim."""
        if self.difference is None:
            return f"begun, {len(self.seeds)} of {self.planned} seeds" if self.seeds else "not run"
        if self.difference.low > 0:
            return "holds"
        return "does not hold" if self.difference.high < 0 else "cannot tell"


def read_claims() -> dict[str, dict[str, Any]]:
    """Return the claims' files by name, the central ones first."""
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("claims/*.yaml"))}
    return dict(sorted(found.items(), key=lambda item: not item[1].get("central")))


def level_of(claim: dict[str, Any]) -> float:
    """Return the confidence of a claim's interval."""
    share = 0.8 * ALPHA / CENTRAL if claim.get("central") else 0.2 * ALPHA / OTHERS
    return 1 - share


def read_scores(name: str) -> dict[str, dict[int, np.ndarray]]:
    """Return which test images each run of a claim got right, by arm and seed."""
    file, found = HERE / "results" / name / "scores.npz", dict[str, dict[int, np.ndarray]]()
    if file.exists():
        with np.load(file) as runs:
            for key in runs.files:
                arm, seed = key.split("/")
                right = np.unpackbits(runs[key])[:SAMPLES].astype(bool)
                found.setdefault(arm.rpartition("-")[0], {})[int(seed.removeprefix("seed-"))] = right
    return found


def evaluate(name: str, claim: dict[str, Any]) -> Found:
    """Return what a claim's runs gave, with the interval at its level."""
    arms, decides = read_scores(name), claim["decides"]
    better, than = arms.get(decides["better"], {}), arms.get(decides["than"], {})
    seeds, planned = tuple(sorted(set(better) & set(than))), claim["compare"]["seeds"]
    if len(seeds) < FEWEST:
        return Found(seeds, planned)
    first, second = (np.stack([arm[seed] for seed in seeds]) for arm in (better, than))
    difference = paired_difference(second, first, level=level_of(claim))
    return Found(seeds, planned, (float(first.mean()), float(second.mean())), difference)


def minutes(name: str) -> float:
    """Return the minutes of all calls, the GPU shared or not."""
    file = HERE / "results" / f"{name}.calls.jsonl"
    calls = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return sum(call["seconds"] for call in calls) / 60


def warnings(name: str) -> list[str]:
    """Return the notes of a claim's comparison that speak of its settings or its length."""
    file = HERE / "results" / name / "result.json"
    notes = json.loads(file.read_text(encoding="utf-8"))["notes"] if file.exists() else []
    kinds = ("edge", "undertrained", "rate", "weak", "tuned")
    return list(dict.fromkeys(note["message"] for note in notes if note["kind"] in kinds))


def as_table() -> str:
    """Return the table and what has to be said of its rows."""
    head = ("claim", "the paper's figure", "ours", "difference, points", "could find", "verdict", "minutes")
    lines = [f"| {' | '.join(head)} |", "| --- | --- | --- | --- | --: | --- | --: |"]
    notes = []
    for name, claim in read_claims().items():
        found, level = evaluate(name, claim), level_of(claim)
        ours = change = could = ""
        said = warnings(name)
        if found.difference is not None and found.scores is not None:
            one, better, than = found.difference, *found.scores
            ours = f"{100 * than:.2f} without, {100 * better:.2f} with, {len(found.seeds)} seeds"
            change = f"{100 * one.mean:+.2f} [{100 * one.low:+.2f}, {100 * one.high:+.2f}] at {100 * level:.4g} %"
            floor = plan_detectable(MOST_SEEDS, SAMPLES, than, level=level)
            could = f"{100 * one.detectable:.2f} (floor {100 * floor:.2f})"
        mark = ", with warnings" if said and found.difference is not None else ""
        row = (f"`{name}`: {claim['claim']}", claim["figure"], ours, change, could, f"{found.verdict}{mark}")
        lines.append(f"| {' | '.join(row)} | {minutes(name):.0f} |")
        notes += _notes(name, claim, found, said)
    return "\n".join([*lines, "", *notes])


def _notes(name: str, claim: dict[str, Any], found: Found, said: list[str]) -> list[str]:
    text = [f"- `{name}`: {claim['host']}. Data: `{claim['compare']['data']}`. Published: {claim['published']}."]
    results = f"../benchmarks/claims/results/{name}"
    if found.difference is not None:
        text.append(f"  [Page]({results}/report.html), [result]({results}/result.md).")
    text += [f"  Warning of `compare`: {one}." for one in said]
    text.append(f"  Command: `python benchmarks/claims/run.py --data DATA --only {name} --parallel 9`.")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; end with status 1 if the page differs")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    made = f"{before}{BEGIN}\n\n{as_table()}\n\n{END}{rest.split(END)[1]}"
    if args.check:
        raise SystemExit(int(made != page))
    PAGE.write_text(made, encoding="utf-8")
    print(as_table())


if __name__ == "__main__":
    main()
