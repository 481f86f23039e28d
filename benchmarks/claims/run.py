"""Put the papers' claims to the test: the comparisons of `claims/*.yaml`, several side by side, within a budget.

    python benchmarks/claims/run.py --data FOLDER --work FOLDER --budget 9m  # all that are ready, central ones first
    python benchmarks/claims/run.py --data FOLDER --work FOLDER --only drloc_swin,cb_vit --parallel 5 --at-once 2
    python benchmarks/claims/run.py --data FOLDER --work OTHER --only cb_vit --seeds 100,101,102  # fresh seeds
    python benchmarks/claims/run.py --list

`--data` is what data.py wrote; claims on texts need the folders CoLA, RTE and encoder, a pretrained model, beside it.
Each claim is one `saccade compare`, printed before it begins, in WORK/<claim>; it can be stopped anywhere, and the
same command goes on where it was. When the budget is used up, comparisons are interrupted, which saves the states of
their runs. `--pack FILE.tgz` then writes what is needed of every run that ended, without weights, and `--unpack
FILE.tgz` puts it into WORK; `--keep FOLDER` copies there what is committed: pages, settings, metrics and decisions as
they are, and in `scores.npz` for each claim which test images each run got right.
Runs that share a GPU overlap only under NVIDIA's Multi-Process Service: start `nvidia-cuda-mps-control -d` first.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
GRACE = 40.0  # seconds in which interrupted comparisons save their states
KEPT = ("*.json", "*.jsonl", "*.yaml", "*.md", "*.html", "scores.safetensors")
LEFT_OUT = ("bad_samples.json", "scores.safetensors")  # of what is kept, not committed


@dataclass(frozen=True)
class Claim:
    """A claim's file.

    Attributes:
        name: of the file.
        text: everything it says.
    """

    name: str
    text: dict[str, Any]

    @property
    def central(self) -> bool:
        """Whether it is one of the five central claims."""
        return bool(self.text.get("central"))

    @property
    def ready(self) -> bool:
        """Whether it has a comparison; the others only state what would be run."""
        return "compare" in self.text

    def words(self, data: Path, out: Path, *, parallel: int, seeds: str | None = None) -> list[str]:
        """Return the words of its command."""
        asked = self.text["compare"]
        recipe = Path(os.path.relpath(HERE / "hosts" / f"{asked['host']}.yaml"))
        words = ["compare", str(data / asked["data"]), "--recipe", recipe.as_posix()]
        words += ["--model", str(data / asked["model"])] if "model" in asked else []  # a pretrained one, beside the set
        words += ["--metric", asked["metric"]] if "metric" in asked else []
        words += [word for arm in asked["arms"] for word in ("--arm", arm)]
        words += ["--seeds", seeds or str(asked["seeds"])]
        words += ["--tune", asked["tune"]] if "tune" in asked else []
        words += [word for text in asked.get("set", ()) for word in ("--set", text)]
        return [*words, "--parallel", str(parallel), "--out", str(out)]


def read_claims() -> list[Claim]:
    """Return all claims, the central ones first."""
    files = sorted((HERE / "claims").glob("*.yaml"))
    claims = [Claim(path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in files]
    return sorted(claims, key=lambda one: not one.central)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the sets, as data.py wrote it")
    parser.add_argument("--work", type=Path, default=Path("runs/claims"), help="folder of the comparisons")
    parser.add_argument("--only", help="these claims, with commas between, in this order")
    parser.add_argument("--budget", default="9m", help="time after which nothing is begun or waited for")
    parser.add_argument("--parallel", type=int, default=5, help="runs of a comparison side by side")
    parser.add_argument("--at-once", type=int, default=2, help="comparisons side by side")
    parser.add_argument("--seeds", help="other seeds than the claim's: a number, or a list of them")
    parser.add_argument("--keep", type=Path, help="copy what is committed to this folder")
    parser.add_argument("--pack", type=Path, help="write what is needed of the runs that ended as one file")
    parser.add_argument("--unpack", type=Path, help="put a packed file into the folder of the comparisons; run nothing")
    parser.add_argument("--list", action="store_true", help="print the claims and end")
    args = parser.parse_args()
    claims = {claim.name: claim for claim in read_claims()}
    if args.list:
        for claim in claims.values():
            print(f"{claim.name}: {claim.text['claim']}{'' if claim.ready else ' (not ready to run)'}")
        return
    names = args.only.split(",") if args.only else [name for name, claim in claims.items() if claim.ready]
    for name in names:
        if name not in claims or not claims[name].ready:
            known = ", ".join(key for key, claim in claims.items() if claim.ready)
            parser.error(f"--only {name} was given; claims that can be run: {known}")
    args.work.mkdir(parents=True, exist_ok=True)
    if args.unpack:
        with tarfile.open(args.unpack) as file:
            file.extractall(args.work, filter="data")
    elif args.data is None:
        parser.error("--data is missing: the folder that data.py wrote")
    else:
        run([claims[name] for name in names], args, until=time.monotonic() + seconds_of(args.budget))
    if args.keep:
        keep(args.work, args.keep)
    if args.pack:
        with tarfile.open(args.pack, "w:gz", compresslevel=3) as file:
            for path in kept_files(args.work):
                file.add(path, path.relative_to(args.work))


def run(claims: list[Claim], args: argparse.Namespace, *, until: float) -> None:
    """Run comparisons side by side, at most `at_once`, until all have ended or the time has."""
    waiting, running = list(claims), dict[str, subprocess.Popen[bytes]]()
    begun = {}
    while waiting or running:
        while waiting and len(running) < args.at_once and time.monotonic() < until:
            claim = waiting.pop(0)
            words = claim.words(args.data, args.work / claim.name, parallel=args.parallel, seeds=args.seeds)
            print(f"{claim.name}: saccade {' '.join(words)}", flush=True)
            with open(args.work / f"{claim.name}.log", "ab") as log:
                command = [sys.executable, "-m", "saccade.cli", *words]
                running[claim.name] = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
            begun[claim.name] = time.monotonic()
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                finish(args.work / name, time.monotonic() - begun[name], process.returncode)
        if time.monotonic() >= until:
            break
        time.sleep(0.2)
    for process in running.values():
        process.send_signal(signal.SIGINT)
    for name, process in running.items():
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
        finish(args.work / name, time.monotonic() - begun[name], process.returncode)


def finish(folder: Path, seconds: float, status: int) -> None:
    """Record how long a call took and what it left."""
    ended = len(list(folder.glob("runs/*/*/summary.json")))
    record = {"seconds": round(seconds, 1), "status": status, "runs": ended, "date": time.strftime("%F")}
    with open(folder.with_suffix(".calls.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(f"{folder.name}: {record}", flush=True)


def kept_files(work: Path) -> list[Path]:
    """Return what is needed of the comparisons: of a run only where it has ended."""
    found = [*work.glob("*.calls.jsonl")]
    for path in sorted(work.glob("*/**/*")):
        parts = path.relative_to(work).parts
        fits = any(path.match(pattern) for pattern in KEPT) and not any(part.startswith(".") for part in parts)
        of_run = len(parts) > 4 and parts[1] == "runs"
        if of_run and (len(parts) > 5 or not work.joinpath(*parts[:4], "summary.json").exists()):
            continue
        inner = len(parts) > 3 and parts[1] in ("tuning", "probes")  # states of trials
        if path.is_file() and fits and not inner and not (of_run and path.suffix == ".html"):
            found.append(path)
    return found


def keep(work: Path, folder: Path) -> None:
    """Copy what is committed to a folder, without this machine's folders, and gather the scores."""
    here = {f"{place}/" for place in (Path.cwd(), Path.cwd().resolve())}
    for path in kept_files(work):
        place = folder / path.relative_to(work)
        if path.name not in LEFT_OUT:
            place.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8")
            for one in here:
                text = text.replace(one, "")
            place.write_text(text, encoding="utf-8")
    for claim in sorted({path.relative_to(work).parts[0] for path in work.glob("*/runs/*/*/scores.safetensors")}):
        right = {
            "/".join(path.parts[-3:-1]): np.packbits(right_of(path))
            for path in sorted((work / claim).glob("runs/*/*/scores.safetensors"))
            if path.with_name("summary.json").exists()
        }
        np.savez_compressed(folder / claim / "scores.npz", **right)


def right_of(path: Path) -> np.ndarray:
    """Return which test samples a run got right: images by the first answer, texts by the class."""
    scores = load_file(path)
    return scores["top1"] if "top1" in scores else scores["accuracy"] > 0


def seconds_of(text: str) -> float:
    """Return a time such as 90, 90s, 9m or 1h in seconds."""
    scale = {"s": 1, "m": 60, "h": 3600}
    return float(text[:-1]) * scale[text[-1]] if text[-1] in scale else float(text)


if __name__ == "__main__":
    main()
