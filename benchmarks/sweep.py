"""Score against learning rate, weight decay and augmentation for every family of models: what their settings come from.

    python benchmarks/sweep.py run OUT --data cifar100.npz --name cifar100 --device cuda --seconds 420
    python benchmarks/sweep.py run OUT --data cifar100.npz --name cifar100_few --samples 2000 --epochs 60 ...
    python benchmarks/sweep.py run OUT ... --share 0/6      # families 0, 6, ... of the list: six processes side by side
    python benchmarks/sweep.py page OUT                     # OUT/sweep.md, sweep.csv and sweep.html of all trials

Trials train by the recipe `small` on a part of the training pictures and are judged on others of them; validation and
test pictures are not looked at. All families are swept in turns, the most telling trials first:

1. rates four times apart (2.5e-4, 1e-3, 4e-3), and beyond while the best is at the edge;
2. the two rates between the best and its neighbours;
3. other seeds of the best rate and of its neighbours, three in all;
4. weight decay, strength of augmentation, drop path and clipping around the best, one at a time.

Every trial that ended is a line of OUT/*.jsonl, so that the same command goes on where it was stopped, today or another
time; `--seconds` stops it in time.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saccade.tuning.space import strength_settings

MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # of each family one, with options for images of 32 pixels
    "vit": ("vit_tiny_patch16_224", {"patch_size": 4}),
    "swin": ("swin_tiny_patch4_window7_224", {"patch_size": 2, "window_size": 4}),
    "resnet": ("resnet18", {}),
    "convnext": ("convnext_atto", {"patch_size": 2}),
    "pit": ("pit_ti_224", {}),
    "mixer": ("mixer_s16_224", {}),
    "efficientnet": ("efficientnet_b0", {}),
    "glnet": ("glnet_nano", {}),
    "t2t": ("t2t_vit_7", {}),
    "cvt": ("cvt_13", {}),
    "sot": ("sot_7", {}),
    "nommer": ("nommer_tiny", {}),
}
PUBLISHED = {  # options that those above are held against
    "vit": {"patch_size": 16},
    "swin": {"patch_size": 4, "window_size": 7},
    "convnext": {"patch_size": 4},
}
TINY: dict[str, dict[str, Any]] = {  # options that make a family small enough to try the script on a CPU
    "vit": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    "glnet": {"dims": [32, 64], "depths": [1, 1], "pattern": ["G", "A"]},
    "resnet": {},
}
COARSE = (1e-3, 2.5e-4, 4e-3)
LOWEST, HIGHEST = 2e-5, 3e-2
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "page"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", help="an archive of small pictures")
    parser.add_argument("--name", default="cifar100", help="what results call this set and size")
    parser.add_argument("--samples", type=int, help="to train with; all that are not held out if not given")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--families", default=",".join(MODELS))
    parser.add_argument("--share", default="0/1", help="K/N: every N-th family, from the K-th")
    parser.add_argument("--seconds", type=float, default=420.0, help="when to stop, from the start of the process")
    parser.add_argument("--steps", default="1234", help="which of the four steps")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="very small models, to try the script")
    args = parser.parse_args()
    if args.do == "page":
        write_pages(args.out)
    else:
        Sweep(args).run()


class Sweep:
    """The trials of some families on one set."""

    def __init__(self, args: argparse.Namespace) -> None:
        from saccade.tasks.opening import open_samples
        from saccade.training.parallel import local_device
        from saccade.training.recipes import configure

        self.args, self.begun = args, time.monotonic() - _age()
        names = args.families.split(",")
        first, every = map(int, args.share.split("/"))
        self.families = names[first::every]
        self.device = local_device(args.device)
        args.out.mkdir(parents=True, exist_ok=True)
        self.file = args.out / f"{args.name}-{first}of{every}.jsonl"
        self.known = {record["key"]: record for record in read_records(args.out)}
        opened = {"data.path": args.data, "data.val_share": 0.005}  # none of it is looked at; see `prepare_ground`
        self.choice, self.data = open_samples("classify", configure("small", opened).data)
        self.ground: Any = None
        self.folder = Path(tempfile.mkdtemp(prefix="sweep-"))

    def run(self) -> None:
        for trials in (self.coarse, self.finer, self.seeds, self.others):
            if str([self.coarse, self.finer, self.seeds, self.others].index(trials) + 1) not in self.args.steps:
                continue
            for family in self.families:
                for values, seed in trials(family):
                    if self.left() < 2:
                        print("the time is over", flush=True)
                        return
                    self.measure(family, values, seed)

    def left(self) -> float:
        return self.args.seconds - (time.monotonic() - self.begun)

    def coarse(self, family: str) -> Iterator[tuple[dict[str, Any], int]]:
        for rate in COARSE:
            yield {"optim.lr": rate}, 0
        tried: list[float] = []
        while scores := self.by_rate(family):
            best = best_rate(scores)
            beyond = best * 4 if best == max(scores) else best / 4 if best == min(scores) else best
            if beyond in (best, *tried) or not LOWEST <= beyond <= HIGHEST:
                return
            tried.append(beyond)
            yield {"optim.lr": beyond}, 0

    def finer(self, family: str) -> Iterator[tuple[dict[str, Any], int]]:
        best = best_rate(self.by_rate(family))
        for rate in (best / 2, best * 2):
            yield {"optim.lr": rate}, 0

    def seeds(self, family: str) -> Iterator[tuple[dict[str, Any], int]]:
        best = best_rate(self.by_rate(family))
        for rate in (best, best / 2, best * 2):
            for seed in SEEDS[1:]:
                yield {"optim.lr": rate}, seed

    def others(self, family: str) -> Iterator[tuple[dict[str, Any], int]]:
        from saccade.training.recipes import configure

        best = {"optim.lr": best_rate(self.by_rate(family))}
        augment = configure("small", {}).augment
        yield {**best, "optim.weight_decay": 0.2}, 0
        yield {**best, "optim.weight_decay": 0.01}, 0
        yield {**best, **strength_settings(augment, 0.0)}, 0
        yield {**best, **strength_settings(augment, 0.5)}, 0
        yield {**best, "model.drop_path": 0.1}, 0
        yield {**best, "optim.clip": None}, 0
        if family in PUBLISHED:
            yield {**best, "model.options": PUBLISHED[family]}, 0

    def by_rate(self, family: str) -> dict[float, float]:
        """Return the first seed's score of each rate, with all else as the recipe has it."""
        found = {}
        for record in self.known.values():
            same = record["family"] == family and record["set"] == self.args.name and record["seed"] == 0
            if same and list(record["values"]) == ["optim.lr"]:
                found[record["values"]["optim.lr"]] = -1.0 if record["score"] is None else record["score"]
        return found

    def measure(self, family: str, values: dict[str, Any], seed: int) -> None:
        from saccade.config import overlay
        from saccade.training.recipes import configure
        from saccade.training.setup import resolve
        from saccade.training.trial import OutOfTime, prepare_ground, run_trial

        args, (model, options) = self.args, MODELS[family]
        key = json.dumps([args.name, family, model, values, seed, args.epochs, args.samples])
        if key in self.known:
            return
        if args.tiny:
            options = {**options, **TINY[family]}
        given = {
            "model.name": model,
            "model.options": options,
            "schedule.epochs": args.epochs,
            "keep.evaluate_every": args.epochs,
            "engine.compile": False,
            "engine.device": args.device,
            **values,
        }
        config = configure("small", given)
        begun = time.monotonic()
        try:
            if self.ground is None:
                _, self.ground = prepare_ground(config, self.choice, self.data, self.device, limit=args.samples)
            ground = self.ground
            resolved, _ = resolve(overlay(config, {"seed": seed}), self.choice, ground.data, self.device)
            until = self.begun + args.seconds
            trial = run_trial(resolved, ground, self.folder / "trial", device=self.device, until=until)
        except OutOfTime:
            return
        except Exception as error:  # one family that does not run must not cost the others
            print(f"{family} {values}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return
        record = {"key": key, "set": args.name, "family": family, "model": model, "options": options, "values": values}
        record |= {"seed": seed, "epochs": args.epochs, "samples": len(ground.data.train)}  # type: ignore[arg-type]
        record |= {"judged_on": len(ground.data.val), "score": trial.score, "failed": trial.failed}
        record |= {"losses": [round(loss, 4) for loss in trial.losses], "seconds": round(time.monotonic() - begun, 2)}
        record |= {"device": str(self.device.type), "batch_size": resolved.optim.batch_size}
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.known[key] = record
        print(f"{time.monotonic() - self.begun:6.1f} s  {family:12} {values} seed {seed}: {trial.score}", flush=True)


def best_rate(scores: dict[float, float]) -> float:
    return max(scores, key=lambda rate: scores[rate]) if scores else COARSE[0]


def _age() -> float:
    """Return how long this process has been there, in seconds: imports count as well."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def read_records(folder: Path) -> list[dict[str, Any]]:
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                warnings.warn(f"{file}: a torn line is left out", stacklevel=2)
    return found


def write_pages(folder: Path) -> None:
    """Write the curves as a table, as CSV and as a page."""
    from saccade.report.chart import line_chart
    from saccade.report.document import Block, Text, to_html, to_markdown
    from saccade.report.page import Section, grid, render_page

    records = read_records(folder)
    fields = ("set", "family", "model", "values", "seed", "epochs", "samples", "judged_on", "batch_size", "score")
    with open(folder / "sweep.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*fields, "failed", "seconds"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**record, "values": json.dumps(record["values"])} for record in records)
    sections, blocks = [], []
    for name in dict.fromkeys(record["set"] for record in records):
        of = [record for record in records if record["set"] == name]
        made: list[Block] = [_rates(of), _others(of)]
        charts = []
        for family in dict.fromkeys(record["family"] for record in of):
            points = _by_rate([record for record in of if record["family"] == family])
            line = [(_place(rate), sum(scores) / len(scores)) for rate, scores in sorted(points.items())]
            band = [(_place(rate), min(scores), max(scores)) for rate, scores in sorted(points.items())]
            charts.append(
                line_chart(
                    {family: line},
                    bands={family: band},
                    title=f"{family}: score against rate",
                    x_label="doublings of 1e-3",
                    y_label="accuracy",
                    percent=True,
                )
            )
        about = (
            f"{len(of)} trials of {of[0]['epochs']} epochs on {of[0]['samples']:,} training pictures, judged on "
            f"{of[0]['judged_on']:,} others of them; batches of {of[0]['batch_size']}, recipe `small`. A line is the "
            "mean over seeds, its band reaches from the worst to the best."
        )
        blocks += [Text(name, "heading"), Text(about), *made]
        sections.append(Section(name, name, to_html([Text(about), grid(*charts), *made])))
    (folder / "sweep.md").write_text(f"# Score against rate\n\n{to_markdown(blocks)}\n", encoding="utf-8")
    page = render_page("Score against rate, family by family", sections, kind="Sweep")
    (folder / "sweep.html").write_text(page, encoding="utf-8")


def _by_rate(records: list[dict[str, Any]]) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for record in records:
        if list(record["values"]) == ["optim.lr"]:
            found.setdefault(record["values"]["optim.lr"], []).append(record["score"] or 0.0)
    return found


def _rates(records: list[dict[str, Any]]) -> Any:
    from saccade.report.document import Table

    families = list(dict.fromkeys(record["family"] for record in records))
    curves = {family: _by_rate([record for record in records if record["family"] == family]) for family in families}
    rates = sorted({rate for curve in curves.values() for rate in curve})
    rows = []
    for family, curve in curves.items():
        best = max(curve, key=lambda rate: sum(curve[rate]) / len(curve[rate])) if curve else 0.0
        cells = [_cell(curve.get(rate), mark=rate == best) for rate in rates]
        rows.append((family, *cells))
    columns = ("Family", *(f"{rate:g}" for rate in rates))
    return Table(
        "Accuracy in percent by rate; the best is marked by *", columns, tuple(rows), tuple(range(1, len(columns)))
    )


def _cell(scores: list[float] | None, *, mark: bool) -> str:
    if not scores:
        return ""
    seeds = f" ({len(scores)} seeds)" if len(scores) > 1 else ""
    return f"{100 * sum(scores) / len(scores):.1f}{'*' if mark else ''}{seeds}"


def _others(records: list[dict[str, Any]]) -> Any:
    from saccade.report.document import Code, Table

    rows = []
    for record in records:
        if len(record["values"]) > 1:
            rate = record["values"]["optim.lr"]
            same = [
                r["score"]
                for r in records
                if r["family"] == record["family"] and r["values"] == {"optim.lr": rate} and r["seed"] == record["seed"]
            ]
            more = ", ".join(f"{name}={value}" for name, value in record["values"].items() if name != "optim.lr")
            change = "" if not same or record["score"] is None else f"{100 * (record['score'] - same[0]):+.1f}"
            rows.append((record["family"], Code(more), f"{100 * (record['score'] or 0):.1f}", change))
    return Table("Other settings at the best rate", ("Family", "Setting", "Accuracy", "Points"), tuple(rows), (2, 3))


def _place(rate: float) -> float:
    from math import log2

    return log2(rate / 1e-3)


if __name__ == "__main__":
    main()
