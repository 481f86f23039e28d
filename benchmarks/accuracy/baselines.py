"""Whole commands as a user gives them, with a clock beside them: trainings cold and warm, a comparison and its waste.

    python benchmarks/accuracy/baselines.py train OUT --data a.npz,b.npz --name cifar100 --seeds 0,1,2,3,4
    python benchmarks/accuracy/baselines.py train OUT --data a.npz,b.npz --like cifar:wide --epochs 80
    python benchmarks/accuracy/baselines.py train OUT --data a.npz,b.npz --bare  # saccade train DATA, and a seed
    python benchmarks/accuracy/baselines.py train OUT --data a.npz,b.npz --name vit --like vit:slow
    python benchmarks/accuracy/baselines.py files PHOTOGRAPHS --data a.npz  # files of 64 pixels
    python benchmarks/accuracy/baselines.py nine OUT --data PHOTOGRAPHS --budget 8m --set data.img_size=64
    python benchmarks/accuracy/baselines.py plan OUT --data PHOTOGRAPHS --set data.img_size=64  # up to the first run
    python benchmarks/accuracy/baselines.py readme OUT --data a.npz,b.npz
    python benchmarks/accuracy/baselines.py table OUT

`train` has the first seed compile into an empty cache and the others take what it kept. `nine` runs three arms with
three seeds and holds the wall clock against the seconds that its runs trained. Every command that ended is a line of
OUT/baselines.jsonl; a command that is there is not run again, and none begins that `--seconds` would cut.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from candidates import SHARED, words_of

ARMS = ("base", "broadcast", "drloc")
LARGEST = 3_000_000  # parameters
FILES, SIDE = {"train": 9469, "val": 3925}, 64  # of ImageNette


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("train", "files", "nine", "plan", "readme", "table"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", help="as saccade train takes it")
    parser.add_argument("--name", default="cifar100", help="what results call this set")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--like", metavar="PLAN:NAME", help="settings of a candidate of candidates.py")
    parser.add_argument("--bare", action="store_true", help="name nothing but the data and the seed")
    parser.add_argument("--parallel", type=int, help="runs of a comparison side by side")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting")
    parser.add_argument("--budget", default="8m", help="of the nine runs")
    parser.add_argument("--recipe", help="of the nine runs, in place of --model vit_tiny")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no command that would not end before")
    args = parser.parse_args()
    if args.do == "table":
        print(table(args.out))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.do == "files":
        write_files(args.out, args.data)
        return
    {"train": trainings, "nine": nine, "plan": plan, "readme": readme}[args.do](Commands(args))


class Commands:
    """Runs commands in processes of their own, with a cache of compiled code that begins empty.

    Args:
        args: of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.begun = args, time.monotonic()
        self.file = args.out / "baselines.jsonl"
        self.longest: dict[str, float] = {}

    def run(self, key: dict[str, Any], words: list[str], folder: Path, *, begin: bool = False) -> dict[str, Any] | None:
        """Return what is known of a command, run where it is not; None where it failed or there is no time.

        `begin` ends it when its first run has begun.
        """
        known = {json.dumps(one["key"], sort_keys=True): one for one in read(self.file)}
        if (name := json.dumps(key, sort_keys=True)) in known:
            return known[name]
        left = self.args.seconds - (time.monotonic() - self.begun)
        if left < self.longest.get(key["do"], 0.0):
            print(f"no time for {name}", flush=True)
            return None
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.args.out.resolve() / "cache")}
        environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
        shutil.rmtree(folder, ignore_errors=True)
        begun, first = time.monotonic(), None
        log = self.args.out / "log.txt"
        with open(log, "ab") as out:
            command = [sys.executable, "-m", "saccade.cli", *words, "--out", str(folder)]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
            while process.poll() is None:
                if first is None and any(folder.glob("runs/*/*/config.yaml")):
                    first = time.monotonic() - begun
                if time.monotonic() - begun > left or (begin and first is not None):
                    process.terminate()
                time.sleep(0.1)
        wall = time.monotonic() - begun
        self.longest[key["do"]] = max(wall, self.longest.get(key["do"], 0.0))
        if process.returncode and not (begin and first is not None):
            print(f"{name}: status {process.returncode}; see {log}", flush=True)
            return None
        record = {"key": key, "command": words, "wall": round(wall, 1), "planned": first and round(first, 1)}
        record |= describe(folder)
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)
        return record


def trainings(commands: Commands) -> None:
    args = commands.args
    words = ["train", args.data, "--quiet"]
    if not args.bare:
        words += ["--epochs", str(args.epochs)]
        words += words_of(args.like) if args.like else [word for text in SHARED for word in ("--set", text)]
    words += [word for text in args.set for word in ("--set", text)]
    for seed in map(int, args.seeds.split(",")):
        key = {
            "do": "train",
            "name": args.name,
            "like": args.like,
            "epochs": None if args.bare else args.epochs,
            "set": args.set,
            "seed": seed,
        }
        record = commands.run(key, [*words, "--seed", str(seed)], args.out / f"{args.name}-{seed}")
        if record is not None and record["parameters"] > LARGEST:
            raise SystemExit(f"{record['parameters']:,} parameters are more than {LARGEST:,}")


def nine(commands: Commands) -> None:
    args = commands.args
    key = {"do": "nine", "data": args.data, "budget": args.budget, "set": args.set}
    commands.run(key, nine_words(args), args.out / "nine")


def plan(commands: Commands) -> None:
    """Begin the nine runs three times, and time what importing alone takes each time after that."""
    for turn in range(3):
        key = {"do": "plan", "turn": turn}
        commands.run(key, nine_words(commands.args), commands.args.out / f"plan-{turn}", begin=True)
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch, timm"], check=True)
        print(f"torch and timm alone are imported in {time.monotonic() - begun:.1f} s", flush=True)


def nine_words(args: argparse.Namespace) -> list[str]:
    arms = [word for arm in ARMS for word in ("--arm", arm)]
    which = ["--recipe", args.recipe] if args.recipe else ["--model", "vit_tiny"]
    words = ["compare", args.data, *which, *arms, "--seeds", "3", "--time", args.budget]
    return words + [word for text in args.set for word in ("--set", text)]


def readme(commands: Commands) -> None:
    """Compare on a sound baseline: a plain ViT on all of CIFAR-100, five seeds; few epochs want less mixing."""
    args = commands.args
    words = ["compare", args.data, "--recipe", "cifar_vit", "--epochs", str(args.epochs), "--seeds", "5"]
    words += [word for arm in ARMS for word in ("--arm", arm)]
    words += ["--set", "augment.mix_prob=0.5", "--set", "schedule.warmup=2", "--set", "keep.evaluate_every=7"]
    words += ["--parallel", str(args.parallel)] if args.parallel else []
    commands.run({"do": "readme", "epochs": args.epochs}, words, args.out / "readme")


def write_files(folder: Path, data: str) -> None:
    """Write images of an archive as JPEG files in class folders, enlarged: what comes as files is read as files."""
    from PIL import Image

    from saccade.data.open import open_data

    opened = open_data(data)
    for split, source in (("train", opened.train), ("val", opened.val)):
        for index, label in enumerate(source.labels[: FILES[split]].tolist()):
            place = folder / split / f"{label:03}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(source.array()[index]).resize((SIDE, SIDE)).save(place / f"{index}.jpg", quality=92)


def describe(folder: Path) -> dict[str, Any]:
    """Return what a training or a comparison in a folder came to."""
    runs = sorted(path.parent for path in [*folder.glob("summary.json"), *folder.glob("runs/*/*/summary.json")])
    summaries = [json.loads((run / "summary.json").read_text(encoding="utf-8")) for run in runs]
    found: dict[str, Any] = {"runs": len(runs), "trained": round(sum(one["seconds"] for one in summaries), 1)}
    if len(runs) == 1:
        found |= {"accuracy": summaries[0]["val_top1"], "parameters": summaries[0]["parameters"]}
        records = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        found |= {"first_epoch": round(records[0]["seconds"], 1)}
    if (result := folder / "result.json").exists():
        told = json.loads(result.read_text(encoding="utf-8"))
        found |= {"arms": {arm["name"]: arm["mean"] for arm in told["arms"]}}
        found |= {"verdicts": {name: one["kind"] for name, one in told["verdicts"].items()}}
    return found


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def table(folder: Path) -> str:
    """Return all commands that ended as a table."""
    lines = ["| command | runs | accuracy | wall s | training s | wall / training | before the first run s |"]
    lines.append("| --- | --: | --: | --: | --: | --: | --: |")
    for one in read(folder / "baselines.jsonl"):
        key = one["key"]
        name = " ".join(
            str(key[part]) for part in ("do", "name", "like", "epochs", "seed", "budget") if key.get(part) is not None
        )
        scores = one.get("arms") or {"": one.get("accuracy")}
        accuracy = ", ".join(f"{arm} {100 * score:.2f}".strip() for arm, score in scores.items() if score is not None)
        share = f"{one['wall'] / max(one['trained'], 1e-9):.2f}"
        cells = (name, one["runs"], accuracy, one["wall"], one["trained"], share, one["planned"] or "")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
