"""Damaged and hostile files by the thousand: nothing but clear errors, no hang, no memory without bound.

    python benchmarks/faults/fuzz.py [--cases 10000] [--kinds images shards ...] [--seed 0] [--first 0]

makes cases of each kind from sound files: bits, bytes, numbers and structure are changed at random, as a function of
seed, kind and number alone, so that `--kinds images --first 123 --cases 1` makes one again. A case may be read as if
nothing were wrong, or be refused by an error that saccade's own code raised. Whatever else is raised, takes longer than
10 seconds or more than a gibibyte, or ends the process, is printed; the exit status is 1 then.
"""

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

SECONDS, MEMORY = 10.0, 1024  # of a case; MiB
PATIENCE = 120.0  # seconds for a case that waits rather than computes; the first has five times that to begin
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.faults.fuzz_readers import Images, Lists, Shards  # noqa: E402
from benchmarks.faults.fuzz_tasks import Labels, Masks, Texts  # noqa: E402
from benchmarks.faults.mutate import as_text, mutate, twist  # noqa: E402


class Configurations:
    """A recipe or a run's settings, read as YAML and laid over the defaults."""

    def __init__(self, _):
        from saccade.settings import TrainConfig, to_yaml

        self.text = to_yaml(TrainConfig())

    def __call__(self, draw):
        import yaml

        from saccade.building.build import parse_plugin
        from saccade.settings import TrainConfig, flatten, overlay, read_yaml

        if draw.random() < 0.5:
            values = twist(yaml.safe_load(self.text), draw)
            with contextlib.suppress(RecursionError):
                text = json.dumps(values)  # is YAML, and is written deeper than YAML is
                text = yaml.safe_dump(values, sort_keys=False)
        else:
            text = mutate(self.text.encode(), draw).decode(errors="replace")
        if draw.random() < 0.2:
            lines = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, draw.choice((3, 30)))]
            text = "\n".join(["l0: &l0 [x]", *lines, text])
        config = overlay(TrainConfig(), read_yaml(text, source="the recipe"), source="the recipe")
        flatten(config)
        for plugin in config.model.plugins:
            parse_plugin(plugin)


class States:
    """A run's states: what is in them and what they say of it."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, draw):
        import torch

        from saccade.explanation.checkpoints import read_weights
        from saccade.runs.state import load_state, save_state

        folder = self.folder / "state"
        for old in folder.glob("*/*"):
            old.unlink()
        for old in folder.glob("*"):
            old.rmdir()
        tensors = {"task.model.w": torch.arange(12.0).view(3, 4), "step": torch.tensor(3)}
        place = save_state(folder, 1, tensors, {"epoch": 1, "rng": [1, 2, 3]})
        record = place / "state.json"
        if draw.random() < 0.6:
            text = as_text(twist(json.loads(json.loads(record.read_text())["body"]), draw), draw)
            digest = hashlib.sha256(text.encode()).hexdigest()
            record.write_text(json.dumps({"sha256": digest, "body": text}))
        else:
            victim = draw.choice(sorted(place.iterdir()))
            victim.write_bytes(mutate(victim.read_bytes(), draw))
        with contextlib.suppress(ValueError):
            read_weights(place)
        load_state(folder)


class Bundles:
    """Weights with their description, exported graphs and packages, opened and asked."""

    def __init__(self, folder):
        from support.exports import tiny_onnx, tiny_run

        self.folder = folder
        self.weights = (tiny_run(folder / "run", plugins=["broadcast"]) / "model.safetensors").read_bytes()
        self.graph = tiny_onnx(folder / "sound.onnx").read_bytes()

    def __call__(self, draw):
        import torch

        from saccade.deployment.predictor import open_predictor

        match draw.choice(("weights", "graph", "package")):
            case "weights":
                path = self.folder / "model.safetensors"
                path.write_bytes(self._weights(draw))
            case "graph":
                path = self.folder / "model.onnx"
                path.write_bytes(self._graph(draw))
            case "package":
                path = self.folder / "model.pt2"
                path.write_bytes(self._package(draw))
        opened = open_predictor(path)
        opened.rows(torch.zeros(1, opened.channels, opened.img_size, opened.img_size, dtype=torch.uint8))

    def _weights(self, draw):
        if draw.random() < 0.3:
            return mutate(self.weights, draw)
        length = int.from_bytes(self.weights[:8], "little")
        header = json.loads(self.weights[8 : 8 + length])
        about = header["__metadata__"]["saccade"]
        header["__metadata__"]["saccade"] = as_text(twist(json.loads(about), draw), draw)
        text = json.dumps(header if draw.random() < 0.9 else twist(header, draw)).encode()
        return len(text).to_bytes(8, "little") + text + self.weights[8 + length :]

    def _graph(self, draw):
        import onnx

        if draw.random() < 0.5:
            return mutate(self.graph, draw)
        model = onnx.load_from_string(self.graph)
        entry = model.metadata_props[0]
        entry.value = as_text(twist(json.loads(entry.value), draw), draw)
        for node in model.graph.node:
            if draw.random() < 0.2:
                node.op_type = draw.choice(("Loop", "Expand", "Range", "Tile", "Reshape", "If", "Abs", "Nothing"))
        return model.SerializeToString()

    def _package(self, draw):
        import zipfile

        from support.exports import BUNDLE

        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("model/extra/saccade.json", as_text(twist(json.loads(BUNDLE.to_json()), draw), draw))
        return mutate(file.getvalue(), draw) if draw.random() < 0.5 else file.getvalue()


KINDS = {
    "images": Images, "shards": Shards, "lists": Lists, "configurations": Configurations, "states": States,
    "bundles": Bundles, "masks": Masks, "texts": Texts, "labels": Labels,
}  # fmt: skip


def is_clear(error):
    """Whether saccade itself said what is wrong, in words."""
    from saccade.data.image import BadSample

    if isinstance(error, BadSample):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    own = "/saccade/" in last and "/benchmarks/" not in last
    return isinstance(error, ValueError | OSError) and own and 10 < len(str(error)) < 5000


def work(kind, seed, first, last, pipe):
    """Run cases one after another, in a process of its own; tell what became of each."""
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(1000)
    limit = 12 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        case = KINDS[kind](Path(folder))
        for number in range(3):  # what is imported at first use takes its time now
            with contextlib.suppress(Exception):
                case(random.Random(number))
        for number in range(first, last):
            pipe.send((number, "began", ""))
            before, outcome, told = _peak(), "read", ""
            try:
                case(random.Random(f"{seed} {kind} {number}"))
            except Exception as error:
                outcome = "refused" if is_clear(error) else "UNCLEAR"
                told = "" if outcome == "refused" else _told(error)
            if _peak() - before > MEMORY:
                outcome, told = "MEMORY", f"{_peak() - before:.0f} MiB"
            pipe.send((number, outcome, told))
    pipe.send((last, "end", ""))


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _told(error):
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:]]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} ({' > '.join(places)})"


def _busy(pid):
    """Return the seconds that a process has computed."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def run_kind(kind, *, seed, first, cases):
    """Run the cases of a kind; return outcomes with their counts, and what is to be mended."""
    counts, faults, number, last = Counter(), [], first, first + cases
    while number < last:
        mine, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=work, args=(kind, seed, number, last, theirs))
        process.start()
        theirs.close()
        waiting = False
        while True:
            try:
                busy, since = _busy(process.pid), time.monotonic()
                while not mine.poll(SECONDS):
                    # On a machine with other work a case may have had little of its time.
                    computed, limit = _busy(process.pid) - busy, PATIENCE if waiting else 5 * PATIENCE
                    if (waiting and computed > SECONDS) or time.monotonic() - since > limit:
                        raise TimeoutError
                number, outcome, told = mine.recv()
            except TimeoutError:
                outcome, told = "HANG", f"more than {SECONDS:g} seconds"
                break
            except EOFError:
                process.join(10)
                outcome, told = "CRASH", f"the process ended with {process.exitcode}"
                break
            if outcome == "end":
                number = last
                break
            waiting = outcome == "began"
            if not waiting:
                counts[outcome] += 1
                faults += [(number, outcome, told)] if outcome.isupper() else []
                number += 1
        if outcome in ("HANG", "CRASH") and not waiting:
            sys.exit(f"the cases of {kind} cannot be made; see above")
        if outcome in ("HANG", "CRASH"):
            counts[outcome] += 1
            faults.append((number, outcome, told))
            number += 1
        process.kill()
        process.join()
    return counts, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    print("| kind | cases | read | refused in words | to be mended | seconds |\n| --- | --: | --: | --: | --: | --: |")
    found = {}
    for kind in args.kinds:
        began = time.perf_counter()
        counts, faults = run_kind(kind, seed=args.seed, first=args.first, cases=args.cases)
        row = (kind, counts.total(), counts["read"], counts["refused"], len(faults))
        print(f"| {' | '.join(map(str, row))} | {time.perf_counter() - began:.0f} |", flush=True)
        found[kind] = faults
    for kind, faults in found.items():
        for number, outcome, told in faults[:40]:
            print(f"{kind} {number}: {outcome} {told}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
