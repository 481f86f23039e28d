"""Deaths at random moments: a run that was killed and resumed ends with the bits of one that never was.

    python benchmarks/faults/kills.py [--kills 200] [--seed 0] [--only shards drloc] [--list]

trains every task, kind of data, plug-in and family of models, in sizes that take a second or two: once to its end, and
once with processes that are ended by SIGKILL, each followed by one that resumes. Half of the deaths come at a moment
of the clock from outside, and hit the run, all of its processes, or one that reads for it; the other half when the run
opens, renames or removes a file. The settings beside, the moments and who dies are functions of the seed. Weights,
scores and predictions are compared as files, metrics by their values; nothing else may be left in the folder, and no
process. A task, reader or plug-in that no case covers is an error, and so is the exit status of any difference.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path

for _name, _value in (("OMP_NUM_THREADS", "1"), ("TOKENIZERS_PARALLELISM", "false"), ("HF_HUB_OFFLINE", "1")):
    os.environ.setdefault(_name, _value)
sys.path[:0] = [str(Path(__file__).parents[2] / "tests"), str(Path(__file__).parents[2])]

from benchmarks.faults.kill_cases import PLUGINS, cases, draw_settings, uncovered  # noqa: E402
from benchmarks.faults.kill_sets import make_all, source  # noqa: E402

# The children. Everything that touches files or threads happens in one, so that this process stays fit to be forked.


def fork(work, log):
    """Run a function in a child, alone in its group of processes, whose words go to a file; return its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        with open(log, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        work()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def end_of(child, seconds=300):
    """Wait for a child; return its exit status, minus the signal's number if one ended it."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError(f"a run took more than {seconds} seconds")


def die_at_file(number):
    """Let this process kill itself when it opens a file to write, renames or removes one for the number-th time."""
    left = [number]
    changes = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "os.chmod")

    def hook(event, args):
        writes = event in changes
        if event == "open" and len(args) > 2:
            writes = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) != 0
        if writes and not str(args[0]).startswith(("/dev/null", "/proc")) and os.getpid() == here:
            left[0] -= 1
            if left[0] == 0:
                os.kill(here, signal.SIGKILL)

    here = os.getpid()
    sys.addaudithook(hook)


def readers_of(child):
    """Return the processes that read for a run."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{child}/task/{child}/children").read_text().split()]
    return []


def left_of(group, seconds=20):
    """Return how many processes of a group live on, when they had time to end."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return 0
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    return 1


class Trial:
    """One case with drawn settings: its run to the end, and the one that dies.

    Args:
        case: what is trained.
        number: of the trial, from which everything is drawn.
        folder: for its files.
        made: where data and models lie.
    """

    def __init__(self, case, number, folder, made, seed):
        self.draw = random.Random(f"{seed} {number} {case}")
        self.case, self.folder, self.made = case, folder, made
        self.settings = draw_settings(case, self.draw)
        self.log = folder / "log.txt"
        self.died = Counter()

    def start(self, out, before=None):
        """Begin a run, or resume it, in a child."""
        begun = (out / "config.yaml").exists()
        named = {"teacher": self.made / "teacher", "maps": self.made / "maps"}
        plugins = [text.format(**named) for text in PLUGINS[self.case.plugin]]
        values = self.settings | {"model.plugins": plugins}
        if self.case.model[1] is None:
            values["model.name"] = str(self.made / self.case.model[0])
        how = (
            {"resume": out}
            if begun
            else {"out": out, "data": source(self.case.data, self.made), "task": self.case.task, "settings": values}
        )

        def work():
            from saccade.training.train import train

            if before is not None:
                before()
            train(quiet=True, **how)

        return fork(work, self.log)

    def run(self, kills):
        """Return what differs after so many deaths, in words; nothing is as it should be."""
        began = time.monotonic()
        status = end_of(self.start(self.folder / "whole"))
        if status:
            raise RuntimeError(f"{self.case} does not train:\n{self.log.read_text()[-600:]}")
        self.seconds = time.monotonic() - began
        for _ in range(kills):
            self.kill()
        status = end_of(self.start(self.folder / "killed"))
        if status:
            return [f"the resumed run ended with {status}: {self.log.read_text()[-600:]}"]
        return differences(self.folder / "whole", self.folder / "killed")

    def kill(self):
        """Start the run and end it somewhere; a death that comes too late is tried again, sooner."""
        how, share = self.draw.choice(("file", "clock")), self.draw.random()
        for _ in range(20):
            if how == "file":
                die = partial(die_at_file, 1 + int(40 * share**2))
                child = self.start(self.folder / "killed", before=die)
                victim = "the run, at a file"
            else:
                child = self.start(self.folder / "killed")
                time.sleep(self.seconds * share)
                victim = self._strike(child)
            status = end_of(child)
            if left_of(child):
                raise RuntimeError(f"{self.case}: processes outlived a run whose end was {victim}")
            # A run whose reader died ends by itself, and says so.
            if status == -signal.SIGKILL or (status == 1 and victim == "a reader"):
                self.died[victim] += 1
                return
            if status:
                raise RuntimeError(f"{self.case}: a run ended with {status}:\n{self.log.read_text()[-600:]}")
            share /= 2
        raise RuntimeError(f"{self.case}: no death came in time")

    def _strike(self, child):
        readers = readers_of(child)
        victim = self.draw.choice(("the run", "all its processes", *(["a reader"] if readers else [])))
        with contextlib.suppress(ProcessLookupError):
            if victim == "the run":
                os.kill(child, signal.SIGKILL)
            elif victim == "a reader":
                os.kill(self.draw.choice(readers), signal.SIGKILL)
            else:
                os.killpg(child, signal.SIGKILL)
        return victim


def differences(whole, killed):
    """Return in words how a run that died differs from one that did not."""
    found = []
    for name in (
        "model.safetensors",
        "best.safetensors",
        "scores.safetensors",
        "predictions.safetensors",
        "config.yaml",
    ):
        one, other = whole / name, killed / name
        if one.exists() != other.exists() or (one.exists() and one.read_bytes() != other.read_bytes()):
            found.append(f"{name} differs")
    clock = ("seconds", "images_per_second")
    for name, lines in (("metrics.jsonl", True), ("summary.json", False)):
        texts = [(run / name).read_text() for run in (whole, killed)]
        values = [[json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)] for text in texts]
        plain = [[{k: v for k, v in one.items() if k not in clock} for one in side] for side in values]
        if json.dumps(plain[0]) != json.dumps(plain[1]):
            found.append(f"{name} differs: {plain}")
    inside = [{str(p.relative_to(run)) for p in run.rglob("*") if "state/" not in str(p)} for run in (whole, killed)]
    if inside[0] != inside[1]:
        found.append(f"the folders differ by {sorted(inside[0] ^ inside[1])}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="at least so many; every case has its turn first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=(), help="cases whose name has one of these words")
    parser.add_argument("--list", action="store_true", help="name the cases and train nothing")
    args = parser.parse_args()
    known = cases()
    if args.list:
        print("\n".join(map(str, known)))
        return 0
    missing = uncovered(known)
    if missing:
        sys.exit(f"no case is about {', '.join(missing)}; add one to `cases`")
    chosen = [case for case in known if not args.only or any(word in str(case) for word in args.only)]
    began, deaths, faults, rows = time.monotonic(), Counter(), [], Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_DATASETS_CACHE"] = str(Path(folder) / "cache")
        made = Path(folder) / "made"
        made.mkdir()
        if end_of(fork(lambda: make_all(made), made / "log.txt")):
            sys.exit((made / "log.txt").read_text()[-3000:])
        for name in json.loads((made / "modules.json").read_text()):  # what children would import, each for itself
            with contextlib.suppress(Exception):
                import_module(name)
        number = 0
        while number < len(chosen) or deaths.total() < args.kills > len(faults):
            case = chosen[number % len(chosen)]
            place = Path(folder) / f"trial{number}"
            place.mkdir()
            trial = Trial(case, number, place, made, args.seed)
            try:
                found = trial.run(trial.draw.choice((2, 3, 4)))
            except (RuntimeError, TimeoutError) as error:
                found = [str(error)]
            deaths.update(trial.died)
            rows[case.task, "kills"] += trial.died.total()
            rows[case.task, "runs"] += 1
            rows[case.task, "faults"] += bool(found)
            faults += [f"{case}, trial {number}, {dict(trial.died)}: {one}" for one in found]
            print(
                f"{time.monotonic() - began:6.0f} s {number} {case}: {dict(trial.died)} {found or 'same'}",
                file=sys.stderr,
                flush=True,
            )
            number += 1
    print(
        f"seed {args.seed}: {deaths.total()} kills in {number} runs of {len(chosen)} cases, "
        f"{time.monotonic() - began:.0f} s; ended: {dict(deaths)}\n"
    )
    print("| task | cases | runs | kills | runs that ended otherwise |\n| --- | --: | --: | --: | --: |")
    for task in dict.fromkeys(case.task for case in chosen):
        count = sum(case.task == task for case in chosen)
        print(f"| {task} | {count} | {rows[task, 'runs']} | {rows[task, 'kills']} | {rows[task, 'faults']} |")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
