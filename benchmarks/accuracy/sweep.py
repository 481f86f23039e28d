"""Score against learning rate, weight decay and augmentation for every family of models: what their settings come from.

    python benchmarks/accuracy/sweep.py run OUT --data cifar100.npz --name cifar100 --device cuda --seconds 420
    python benchmarks/accuracy/sweep.py run OUT --data cifar100.npz --name cifar100_few --samples 2000 --epochs 60 ...
    python benchmarks/accuracy/sweep.py run OUT ... --claims DIR &  # several side by side share the work
    python benchmarks/accuracy/sweep.py page OUT  # OUT/sweep.md, sweep.csv and sweep.html of all trials

Trials train by the recipe `small` on a part of the training images and are judged on others of them; validation and
test images are not looked at. They stand for longer runs, so that augmentation is whole where it is not what is tried.
All families are swept in turns, the most telling trials first:

1. rates four times apart (2.5e-4, 1e-3, 4e-3) for a third of the epochs, and beyond while the best is at the edge;
2. the best of them, half and twice of it for all of the epochs, and on while the best is at the edge;
3. other seeds of the best rate, `--seeds` in all;
4. weight decay, warm-up, strength of augmentation, drop path and clipping at the rate that a model gets by itself, one
   at a time;
5. other seeds of the first rates, where few images judge, as of photographs;
6. other seeds of the best rate's neighbours;
7. Muon in place of AdamW, at that rate, half, twice and four times of it;
8. `--seeds` seeds of the rate that a model gets by itself, half and twice of it;
9. other seeds of what was better than its own by half a point in step 4;
a. strengths of augmentation, for `--epochs` that are many and few;
b. `--seeds` seeds of the rate that a model gets by itself.

Every trial that ended is a line of OUT/*.jsonl, so that the same command goes on where it was stopped, today or another
time; `--seconds` stops it in time.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweep_pages import COARSE, MODELS, best_rate, own_rate, read_records, write_pages

from saccade.settings.strength import strength_settings

TINY: dict[str, dict[str, Any]] = {  # options that make a family small enough to try the script on a CPU
    "vit": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    "glnet": {"dims": [32, 64], "depths": [1, 1], "pattern": ["G", "A"]},
    "resnet": {},
}
LOWEST, HIGHEST = 2e-5, 3e-2
SHARED = "489ab"  # steps whose trials are known before them, so that processes share them one by one
BETTER = 0.005  # what another seed is worth

Asked = tuple[dict[str, Any], int, int]  # settings, seed, epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "page"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", help="an archive of small images")
    parser.add_argument("--name", default="cifar100", help="what results call this set and size")
    parser.add_argument("--samples", type=int, help="to train with; all that are not held out if not given")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--families", default=",".join(MODELS))
    parser.add_argument("--claims", type=Path, help="an empty folder that processes side by side share the work by")
    parser.add_argument("--seconds", type=float, default=420.0, help="when to stop, from the start of the process")
    parser.add_argument("--seeds", type=int, default=3, help="of the best rate and its neighbours")
    parser.add_argument("--steps", default="1236", help="which of the steps, in this order")
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
        self.more = range(1, args.seeds)  # seeds after the first
        self.families = args.families.split(",")
        self.device = local_device(args.device)
        args.out.mkdir(parents=True, exist_ok=True)
        self.claims = args.claims or Path(tempfile.mkdtemp(prefix="sweep-claims-"))
        self.claims.mkdir(parents=True, exist_ok=True)
        self.file = args.out / f"{args.name}-{os.getpid()}.jsonl"
        self.known: dict[str, Any] = {}
        opened = {"data.path": args.data, "data.val_share": 0.005}  # none of it is looked at; see `prepare_ground`
        self.choice, self.data = open_samples("classify", configure("small", opened).data)
        self.grounds: dict[int, Any] = {}  # seeds hold out images of their own
        self.folder = Path(tempfile.mkdtemp(prefix="sweep-"))

    def run(self) -> None:
        """Take steps of families, the first steps first, until none is left or the time is over."""
        steps = {"1": self.coarse, "2": self.finer, "3": self.seeds, "4": self.others}
        steps |= {"5": self.coarse_seeds, "6": self.neighbours, "7": self.muon, "8": self.own, "9": self.again}
        steps |= {"a": self.strengths, "b": self.own_seeds}
        tasks = [(step, family) for step in self.args.steps for family in self.families]
        while tasks and self.left() > 2:
            mine = next((task for task in tasks if self.claim(*task)), None)
            tasks = [task for task in tasks if task != mine and not self.mark("begun", *task).exists()]
            if mine is None:  # all that can begin is under way elsewhere
                time.sleep(0.5)
                continue
            step, family = mine
            self.known = {record["key"]: record for record in read_records(self.args.out)}
            for values, seed, epochs in steps[step](family):
                if self.left() < 2:
                    break
                if step in SHARED and not self.take(step, family, (values, seed, epochs)):
                    continue
                self.measure(family, values, seed, epochs)
            else:
                self.mark("ended", *mine).touch()
        print("the time is over" if self.left() <= 2 else "all is done", flush=True)

    def mark(self, state: str, step: str, family: str) -> Path:
        return self.claims / f"{self.args.name}-{family}-{step}-{state}"

    def claim(self, step: str, family: str) -> bool:
        """Whether a step was this process's to take: the one before has ended, and nobody else has it."""
        if step in SHARED:
            return True
        earlier = self.args.steps[: self.args.steps.index(step)]
        if earlier and not self.mark("ended", earlier[-1], family).exists():
            return False
        try:
            self.mark("begun", step, family).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def take(self, step: str, family: str, asked: Asked) -> bool:
        """Whether a trial was this process's to take."""
        which = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
        try:
            self.mark(which, step, family).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def left(self) -> float:
        return self.args.seconds - (time.monotonic() - self.begun)

    def coarse(self, family: str) -> Iterator[Asked]:
        short = max(self.args.epochs // 3, 1)
        for rate in COARSE:
            yield {"optim.lr": rate}, 0, short
        yield from self.beyond(family, 4.0, short)

    def finer(self, family: str) -> Iterator[Asked]:
        best, whole = best_rate(self.by_rate(family, max(self.args.epochs // 3, 1))), self.args.epochs
        for rate in (best, best / 2, best * 2):
            yield {"optim.lr": rate}, 0, whole
        yield from self.beyond(family, 2.0, whole)

    def beyond(self, family: str, factor: float, epochs: int) -> Iterator[Asked]:
        """Go on while the best is the lowest or the highest of those tried."""
        tried: list[float] = []
        while scores := self.by_rate(family, epochs):
            best = best_rate(scores)
            further = best * factor if best == max(scores) else best / factor if best == min(scores) else best
            if further in (best, *tried) or not LOWEST <= further <= HIGHEST:
                return
            tried.append(further)
            yield {"optim.lr": further}, 0, epochs

    def seeds(self, family: str) -> Iterator[Asked]:
        best = best_rate(self.by_rate(family, self.args.epochs))
        for seed in self.more:
            yield {"optim.lr": best}, seed, self.args.epochs

    def neighbours(self, family: str) -> Iterator[Asked]:
        best = best_rate(self.by_rate(family, self.args.epochs))
        for seed in self.more:
            for rate in (best / 2, best * 2):
                yield {"optim.lr": rate}, seed, self.args.epochs

    def coarse_seeds(self, family: str) -> Iterator[Asked]:
        short = max(self.args.epochs // 3, 1)
        for seed in self.more:
            for rate in sorted(self.by_rate(family, short)):
                yield {"optim.lr": rate}, seed, short

    def others(self, family: str) -> Iterator[Asked]:
        from saccade.training.recipes import configure

        augment = configure("small", {}).augment
        tried: list[dict[str, Any]] = [
            {"optim.weight_decay": 0.2},
            {"optim.weight_decay": 0.01},
            {"schedule.warmup": 2.0},
            {"model.drop_path": 0.1},
            {"optim.clip": None},
            strength_settings(augment, 0.5),
        ]
        for values in tried:
            yield {"optim.lr": self.own_rate(family), **values}, 0, self.args.epochs

    def again(self, family: str) -> Iterator[Asked]:
        own = self.by_rate(family, self.args.epochs).get(self.own_rate(family), 1.0)
        better = [
            record["values"]
            for record in self.known.values()
            if (record["set"], record["family"], record["seed"]) == (self.args.name, family, 0)
            and {*record["values"]} > {"optim.lr"}
            and record["values"]["optim.lr"] == self.own_rate(family)
            and record["epochs"] == self.args.epochs
            and (record["score"] or 0.0) >= own + BETTER
        ]
        for seed in self.more:
            for values in better:
                yield values, seed, self.args.epochs

    def muon(self, family: str) -> Iterator[Asked]:
        best = best_rate(self.by_rate(family, self.args.epochs))
        for rate in (best, 2 * best, best / 2, 4 * best):
            yield {"optim.lr": rate, "optim.name": "muon", "optim.momentum": 0.95}, 0, self.args.epochs

    def own(self, family: str) -> Iterator[Asked]:
        for seed in (0, *self.more):
            for factor in (1.0, 0.5, 2.0):
                yield {"optim.lr": self.own_rate(family) * factor}, seed, self.args.epochs

    def own_seeds(self, family: str) -> Iterator[Asked]:
        for seed in (0, *self.more):
            yield {"optim.lr": self.own_rate(family)}, seed, self.args.epochs

    def strengths(self, family: str) -> Iterator[Asked]:
        from saccade.training.recipes import configure

        augment = configure("small", {}).augment
        for strength in (0.25, 0.0, 0.5):
            yield {"optim.lr": self.own_rate(family), **strength_settings(augment, strength)}, 0, self.args.epochs

    def own_rate(self, family: str) -> float:
        samples = self.args.samples or round(0.8 * len(self.data.train))
        return own_rate(family, samples)

    def by_rate(self, family: str, epochs: int) -> dict[float, float]:
        """Return the first seed's score of each rate, with all else as the recipe has it."""
        found = {}
        for record in self.known.values():
            same = record["family"] == family and record["set"] == self.args.name and record["seed"] == 0
            if same and record["epochs"] == epochs and list(record["values"]) == ["optim.lr"]:
                found[record["values"]["optim.lr"]] = -1.0 if record["score"] is None else record["score"]
        return found

    def measure(self, family: str, values: dict[str, Any], seed: int, epochs: int) -> None:
        from saccade.settings import overlay
        from saccade.settings.sizes import batch_for
        from saccade.training.recipes import configure
        from saccade.training.resolve import resolve
        from saccade.training.trial import SEED, OutOfTime, prepare_ground, run_trial

        args, model = self.args, MODELS[family]
        key = json.dumps([args.name, family, model, values, seed, epochs, args.samples])
        if key in self.known:
            return
        given = {
            "model.name": model,
            "model.options": TINY[family] if args.tiny else {},
            "schedule.epochs": epochs,
            "keep.evaluate_every": epochs,
            "augment.full_epochs": None,
            "engine.compile": False,
            "engine.device": args.device,
        }
        config = overlay(configure("small", given), values)  # as the family's own numbers: few images scale them
        begun = time.monotonic()
        try:
            if seed not in self.grounds:
                which = {"limit": args.samples, "seed": SEED + seed}
                _, self.grounds[seed] = prepare_ground(config, self.choice, self.data, self.device, **which)
            ground = self.grounds[seed]
            resolved, _ = resolve(overlay(config, {"seed": seed}), self.choice, ground.data, self.device)
            rate = batch_for(config, len(ground.data.train))[1]  # not the family's own for few images  # type: ignore[arg-type]
            resolved = overlay(resolved, {"optim.lr": rate})
            until = self.begun + args.seconds
            trial = run_trial(resolved, ground, self.folder / "trial", device=self.device, until=until)
        except OutOfTime:
            return
        except Exception as error:  # one family that does not run must not cost the others
            print(f"{family} {values}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return
        record = {"key": key, "set": args.name, "family": family, "model": model, "values": values}
        record |= {"options": resolved.model.options}
        record |= {"seed": seed, "epochs": epochs, "samples": len(ground.data.train)}  # type: ignore[arg-type]
        record |= {"judged_on": len(ground.data.val), "score": trial.score, "failed": trial.failed}
        record |= {"losses": [round(loss, 4) for loss in trial.losses], "seconds": round(time.monotonic() - begun, 2)}
        record |= {"device": str(self.device.type), "batch_size": resolved.optim.batch_size, "rate": resolved.optim.lr}
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.known[key] = record
        print(
            f"{time.monotonic() - self.begun:6.1f} s  {family:12} {values} seed {seed}, {epochs} epochs: {trial.score}",
            flush=True,
        )


def _age() -> float:
    """Return how long this process has been there, in seconds: imports count as well, a minute at most."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        return min(max(age, 0.0), 60.0)  # in some containers a process is as old as the machine
    except (OSError, ValueError, IndexError):
        return 0.0


if __name__ == "__main__":
    main()
