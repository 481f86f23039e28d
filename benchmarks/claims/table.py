"""Make docs/claims.md of what the claims' runs gave: every interval is computed anew from `results/*/scores.npz`.

python benchmarks/claims/table.py          # write the table into docs/claims.md, and the figure results/claims.html
python benchmarks/claims/table.py --check  # end with status 1 if the table there is another one
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from saccade.report import Interval, Section, interval_chart, paragraph, render_page, table
from saccade.report.markup import join
from saccade.statistics import Difference, paired_difference, plan_detectable

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "claims.md"
FIGURE = HERE / "results" / "claims.html"
BEGIN, END = "<!-- made by benchmarks/claims/table.py -->", "<!-- end -->"
CENTRAL, OTHERS = 5, 31  # claims, of which the first share four fifths of ALPHA
ALPHA = 0.05
SAMPLES = 10_000  # of the test set, where the claim's file names no others
FEWEST = 5  # seeds that all arms must have finished before anything is computed
MOST_SEEDS = 10_000  # as good as any number
LAYERS = {"all": "all layers", "deep": "last four layers less the first four"}


@dataclass(frozen=True)
class Compared:
    """One comparison that a claim is decided by.

    Attributes:
        better: the arm that is to be better, or as good.
        than: the other arm.
        margin: None, or the largest difference of arms that are as good as each other.
        scores: mean accuracy of the two arms, the one that is to be better first.
        difference: between them.
        what: is compared, if it is no accuracy.
    """

    better: str
    than: str
    margin: float | None
    scores: tuple[float, float]
    difference: Difference
    what: str = ""

    @property
    def verdict(self) -> str:
        """What the interval says of this comparison."""
        low, high, margin = self.difference.low, self.difference.high, self.margin
        if margin is None:
            return "holds" if low > 0 else "does not hold" if high < 0 else "cannot tell"
        if -margin < low and high < margin:
            return "holds"
        return "does not hold" if low > margin or high < -margin else "cannot tell"


@dataclass(frozen=True)
class Found:
    """What a claim's runs gave.

    Attributes:
        seeds: that all of its arms have finished.
        planned: seeds that the claim's file asks for; 0 if it has no comparison of its own.
        compared: its comparisons; none where too few seeds have ended.
    """

    seeds: tuple[int, ...]
    planned: int
    compared: tuple[Compared, ...] = ()

    @property
    def verdict(self) -> str:
        """A claim holds if all of its comparisons do, and does not if one does not."""
        verdicts = {one.verdict for one in self.compared}
        if not verdicts:
            return f"started, {len(self.seeds)} of {self.planned} seeds" if self.seeds else "not run"
        return next(one for one in ("does not hold", "cannot tell", "holds") if one in verdicts)


def read_claims() -> dict[str, dict[str, Any]]:
    """Return the claims' files by name, the central ones first."""
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("claims/*.yaml"))}
    return dict(sorted(found.items(), key=lambda item: not item[1].get("central")))


def level_of(claim: dict[str, Any]) -> float:
    """Return the confidence of a claim's interval."""
    share = 0.8 * ALPHA / CENTRAL if claim.get("central") else 0.2 * ALPHA / OTHERS
    return 1 - share


def read_scores(name: str, samples: int) -> dict[str, dict[int, np.ndarray]]:
    """Return by arm and seed which test samples each run of a claim got right, or its entropy, layers by samples."""
    file, found = HERE / "results" / name / "scores.npz", dict[str, dict[int, np.ndarray]]()
    if file.exists():
        with np.load(file) as runs:
            for key in runs.files:
                arm, seed = key.split("/")
                scores = runs[key] if runs[key].ndim == 2 else np.unpackbits(runs[key])[:samples].astype(bool)
                found.setdefault(arm.rpartition("-")[0], {})[int(seed.removeprefix("seed-"))] = scores
    return found


def sparsity(entropy: np.ndarray, layers: str) -> np.ndarray:
    """Return how far entropy, a share of its bound, lies below it: the layers' mean, or deep layers less early ones."""
    below = 1 - entropy.astype(np.float64)
    half = len(below) // 2
    return below.mean(0) if layers == "all" else below[-half:].mean(0) - below[:half].mean(0)


def evaluate(name: str, claim: dict[str, Any]) -> Found:
    """Return what a claim's runs gave, with intervals at its level."""
    arms, asked = read_scores(name, claim.get("samples", SAMPLES)), claim.get("compare", {})
    decides = claim.get("decides", [])
    decides = decides if isinstance(decides, list) else [decides]
    needed = [arms.get(one[which], {}) for one in decides for which in ("better", "than")]
    seeds = tuple(sorted(set.intersection(*map(set, needed)))) if needed else ()
    if len(seeds) < FEWEST:
        return Found(seeds, asked.get("seeds", 0))
    compared = []
    for one in decides:
        both = [[arms[one[which]][seed] for seed in seeds] for which in ("better", "than")]
        if "layers" in one:
            both = [[sparsity(run, one["layers"]) for run in runs] for runs in both]
        first, second = map(np.stack, both)
        difference = paired_difference(second, first, level=level_of(claim))
        scores = (float(first.mean()), float(second.mean()))
        what = f" ({LAYERS[one['layers']]})" if "layers" in one else ""
        compared.append(Compared(one["better"], one["than"], one.get("margin"), scores, difference, what))
    return Found(seeds, asked.get("seeds", len(seeds)), tuple(compared))


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
    """Return the table of the claims that were started, remarks on its rows, and the claims that were not."""
    head = ("claim", "the paper's figure", "ours", "difference, points", "could find", "verdict", "minutes")
    lines, notes, waiting = [f"| {' | '.join(head)} |", "| --- | --- | --- | --- | --: | --- | --: |"], [], []
    for name, claim in read_claims().items():
        found, said = evaluate(name, claim), warnings(claim.get("runs", name))
        if not found.seeds:
            waiting.append(f"| {_link(name)}: {claim['claim']} | {claim['figure']} | {claim['minutes']} |")
            continue
        ours = change = could = ""
        for one in found.compared:
            better, than = one.scores
            ours = f"{100 * than:.2f} {one.than}, {100 * better:.2f} {one.better}, {len(found.seeds)} seeds{one.what}"
            change = (
                f"{100 * one.difference.mean:+.2f} [{100 * one.difference.low:+.2f}, {100 * one.difference.high:+.2f}]"
            )
            change += f" at {100 * one.difference.level:.4g} %"
            could = f"{100 * one.difference.detectable:.2f}"
            if one.difference.right_or_wrong:
                floor = plan_detectable(MOST_SEEDS, claim.get("samples", SAMPLES), than, level=level_of(claim))
                could += f" (planned floor {100 * floor:.2f})"
            verdict = f"{one.verdict}{', with warnings' if said else ''}"
            row = (f"{_link(name)}: {claim['claim']}", claim["figure"], ours, change, could, verdict)
            lines.append(f"| {' | '.join(row)} | {minutes(name):.0f} |")
        if not found.compared:
            row = (f"{_link(name)}: {claim['claim']}", claim["figure"], ours, change, could, found.verdict)
            lines.append(f"| {' | '.join(row)} | {minutes(name):.0f} |")
        notes += _notes(name, claim, found, said)
    rest = ["Not run yet, with the minutes of an H200 that they will take, estimated:", "", *_waiting(waiting)]
    return "\n".join([*lines, "", *notes, "", *rest])


def as_page() -> str:
    """Return a page with every comparison's interval over one axis, and the claims that wait."""
    rows, waiting = [], []
    for name, claim in read_claims().items():
        found = evaluate(name, claim)
        doubt = ", with warnings" if warnings(claim.get("runs", name)) else ""
        for one in found.compared:
            ends = (100 * end for end in (one.difference.low, one.difference.mean, one.difference.high))
            rows.append(
                Interval(f"{name}: {one.better} against {one.than}{one.what}", *ends, remark=f"{one.verdict}{doubt}")
            )
        if not found.compared:
            waiting.append((name, claim["claim"], found.verdict))
    chart = interval_chart(
        rows,
        title="Difference in top-1 accuracy; for entropy, in its distance from the bound",
        x_label="points, right of zero is better",
        name_label="Claim",
        remark_label="Verdict",
    )
    central, other = (f"{100 * level_of({'central': which}):.5g} %" for which in (True, False))
    levels = paragraph(f"Intervals of central claims are of {central}, those of others of {other}.")
    left = table(("Claim", "What it says", "State"), waiting, caption="Claims without an interval")
    sections = [
        Section("tested", "Tested", join(levels, chart)),
        Section("waiting", "Not tested yet", left),
    ]
    return render_page("Do the papers' claims hold?", sections, kind="Claims")


def _link(name: str) -> str:
    return f"[{name}](../benchmarks/claims/claims/{name}.yaml)"


def _waiting(rows: list[str]) -> list[str]:
    return ["| claim | the paper's figure | minutes |", "| --- | --- | --: |", *rows]


def _notes(name: str, claim: dict[str, Any], found: Found, said: list[str]) -> list[str]:
    if "runs" in claim:
        command = f"python benchmarks/claims/probe.py --work WORK --data DATA/{claim['data']} --runs {claim['runs']}"
        return [
            f"- {name}: {_overall(found)}`{claim['score']}` of the models of {claim['runs']}.",
            f"  Command: `{command}`.",
        ]
    text = [f"- {name}: {claim['host']}. Data: `{claim['compare']['data']}`. Published: {claim['published']}."]
    results = f"../benchmarks/claims/results/{name}"
    if found.compared:
        text.append(f"  {_overall(found)}[Page]({results}/report.html), [result]({results}/result.md).")
    text += [f"  Warning of `compare`: {one}." for one in said]
    text.append(f"  Command: `python benchmarks/claims/run.py --data DATA --only {name} --parallel 9`.")
    return text


def _overall(found: Found) -> str:
    return f"Of all {len(found.compared)} comparisons together: {found.verdict}. " if len(found.compared) > 1 else ""


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
    FIGURE.write_text(as_page(), encoding="utf-8")
    print(as_table())


if __name__ == "__main__":
    main()
