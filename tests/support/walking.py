"""A page's commands run in their order and smallest form, in a folder of stand-ins under the page's own names."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import saccade
from saccade.cli import main
from support.arrived import lost
from support.docs import Item
from support.smallest import smallest
from support.stand_ins import StandIns, interrupt, named, remove

LIMIT = 400  # seconds of one command
PLACEHOLDERS = {  # what no file can be called, or what only size stands against
    "IMAGE...": "cat.jpg",
    "IMAGES...": "IMAGES",
    r"\bARM\b": "squeeze",
    "timm:NAME@": "timm:test_resnet@",
    "timm:dm_nfnet_f6": "timm:test_nfnet",
    r"\bWEIGHTS\b": "WEIGHTS.safetensors",
    "find / ": "find . ",
}
RUN_NAMES = r"RUN2|RUN|OTHER_RUN|OTHER|TARGET|runs/flowers|runs/birds|runs/photos"
BY_VIEW = {"slots-training": "kept_slots", "slots": "glnet", "nomination": "nommer", "scaling": "scaled"}


class WalkError(AssertionError):
    """A command that did not do what its page says."""


class Walk:
    """Runs the items of a page in a folder; RUN stands for the run that the page trained last."""

    def __init__(self, page: str, home: Path, stand_ins: StandIns) -> None:
        self.page, self.home, self.stand_ins = page, home, stand_ins
        self.trained: Path | None = None
        self.laid: dict[str, str] = {}
        self.names: dict[str, Any] = {"saccade": saccade}  # of the page's examples
        self.served: list[str] = []

    def run(self, item: Item) -> None:
        """Run a command; raise WalkError if it does not end well."""
        command = item.text
        for pattern, instead in PLACEHOLDERS.items():
            command = re.sub(pattern if "\\" in pattern else re.escape(pattern), instead, command)
        self.lay(command)
        command = self.newest(command)
        if command.startswith("curl "):
            self.ask(command)
        elif re.match(r"(SACCADE_TOKEN=\S+ )?saccade (serve|watch) ", command):
            self.serve(command)
        elif "|" in command.split("'")[0] + command.split("'")[-1] or command.startswith("torchrun"):
            self.shell(command)
        else:
            self.type(command)

    def lay(self, command: str) -> None:
        """Put the stand-ins of a command's names into the folder."""
        found = named(command.replace("...", " ")) | self.runs(command)
        if model := re.search(r"--model (\w+)", command):
            if "--pretrained" in command:
                self.stand_ins.fetch(model[1])
            found |= dict.fromkeys(re.findall(r"\b\w+\.safetensors", command), f"weights of {model[1]}")
        elif "WEIGHTS" in command:
            found["WEIGHTS.safetensors"] = "weights of nommer_base"
        for model_name in re.findall(r"timm:(\w+)(?!\w|@)", command):
            self.stand_ins.fetch(model_name)
        if "--browse runs" in command:
            found["runs/one"] = "classifier"
        found |= {f"{name}.pth": f"published {name}" for name in re.findall(r"@(\w+)\.pth", command)}
        if "@FILE" in command:
            found["FILE.safetensors"] = "weights of test_resnet"
        if command.startswith("saccade evaluate deit"):
            self.stand_ins.fetch("deit_small_patch16_224")
        if "model.onnx" in command and "export/" not in command:
            exported = [path for path in self.home.rglob("export/model.onnx") if not path.is_symlink()]
            if exported:
                shutil.copy(exported[-1], self.home / "model.onnx")
            else:
                found["model.onnx"] = "exported"
        if "printf" in command or "asked.csv" in command:
            found["cat.jpg"] = "image"
        for name, kind in found.items():
            if self.laid.get(name) != kind or (self.home / name).is_symlink() or not (self.home / name).exists():
                self.stand_ins.lay(self.home / name, kind)
                self.laid[name] = kind

    def runs(self, command: str) -> dict[str, str]:
        """Return the runs that a command names; the one that it writes is not there before."""
        found = {}
        written = re.search(r"--out (\S+)", command)
        view = re.search(r"--views ([\w-]+)", command)
        for match in re.finditer(rf"(?<![\w./-])(?:{RUN_NAMES})(?![\w.-])", command):
            name = match[0]
            if written and written[1] == name:
                remove(self.home / name)
            elif name == "RUN" and "street.jpg" in command:
                found[name] = "street"
            elif name == "RUN" and view and view[1] in BY_VIEW:
                found[name] = BY_VIEW[view[1]]
            elif name == "RUN" and self.trained is not None and self.page != "fidelity.md":  # whose rows stand alone
                self.link(name, self.trained)
            elif "segment:" in command or self.page == "segmentation.md":
                found[name] = "segmenter"
            elif self.page == "detection.md":
                found[name] = "detector"
            elif name == "RUN2":
                found[name] = "second_vit"
            elif name in ("OTHER", "OTHER_RUN", "runs/photos"):
                found[name] = "other"
            else:
                found[name] = "vit" if command.startswith("saccade explain") else "classifier"
        return found

    def link(self, name: str, run: Path) -> None:
        """Have a run of the page under this name."""
        path = self.home / name
        if path != run and not (path.is_symlink() and path.resolve() == run.resolve()):
            remove(path)
            path.symlink_to(run)
            self.laid.pop(name, None)

    def newest(self, command: str) -> str:
        """Replace a folder that is named by what was asked, as `runs/tune-...-1a2b3c4d`, by the one that was made."""

        def made(match: re.Match[str]) -> str:
            found = sorted(self.home.glob(f"{match[1]}-*"), key=lambda path: path.stat().st_mtime)
            if not found:
                raise WalkError(f"no earlier command of the page made {match[0]}")
            return str(found[-1].relative_to(self.home))

        command = re.sub(r"(runs/[\w-]+)-1a2b3c4d", made, command)
        return re.sub(r"(?<=--answers )FOLDER", lambda _: made(re.match(r"(.*)", "runs/compare")), command)

    def type(self, command: str) -> None:
        """Run a command in this process."""
        line, _, to = command.partition(" > ")
        words = smallest(shlex.split(line)[1:])
        words = [part for word in words for part in self.expanded(word)]
        if words[:2] == ["train", "--resume"]:
            self.stopped(words[2])
        told, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(wrong), alarm(LIMIT):
            try:
                status = main(words)
            except SystemExit as stop:
                status = stop.code
        if to:
            (self.home / to).write_text(told.getvalue())
        allowed = (0, 1) if words[:2] == ["data", "check"] else (0,)
        if status not in allowed or "Traceback" in wrong.getvalue():
            end = " ".join((told.getvalue() + wrong.getvalue()).split())[-700:]
            raise WalkError(f"saccade {shlex.join(words)}\n    ended with {status}: {end}")
        self.after(command, words)

    def expanded(self, word: str) -> list[str]:
        """Return the files that a pattern stands for, as a shell does."""
        return sorted(str(path.relative_to(self.home)) for path in self.home.glob(word)) if "*.jpg" in word else [word]

    def shell(self, command: str) -> None:
        """Run a line with pipes or several processes by a shell."""
        if command.startswith("torchrun "):
            before, _, rest = command.partition(" -m saccade.cli ")
            before = re.sub(r"(?<=--nproc-per-node )\d+", "2 --standalone", before)
            words = smallest(shlex.split(rest))
            command = f"{before} -m saccade.cli {shlex.join(words)}"
        else:
            words = []
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=self.home,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        if done.returncode or "Traceback" in done.stderr:
            told = done.stdout + re.sub(r"(?s)=====.*", "", done.stderr)  # torchrun's own account of it
            raise WalkError(f"{command}\n    ended with {done.returncode}: {' '.join(told.split())[-700:]}")
        if words:
            self.after(command, words)

    def environment(self) -> dict[str, str]:
        """Return an environment whose `saccade` and `torchrun` are of this interpreter and these sources."""
        tools = self.home.parent / "tools"
        tools.mkdir(exist_ok=True)
        for name, module in (("saccade", "saccade.cli"), ("torchrun", "torch.distributed.run")):
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            (tools / name).chmod(0o755)
        src = str(Path(sys.modules["saccade"].__file__).parents[1])
        paths = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": src, "HF_HUB_CACHE": str(self.stand_ins.hub)}
        return os.environ | paths | {"OMP_NUM_THREADS": "1"}

    def after(self, command: str, words: list[str]) -> None:
        """Keep the run that a command trained for those that name it, and see that what was given arrived."""
        if words[0] == "explain" and "--views" in words:
            page = max(self.home.rglob("numbers.json"), key=lambda path: path.stat().st_mtime)
            views = words[words.index("--views") + 1].split(",")
            if absent := [why for key, why in absences(json.loads(page.read_text())) if key in views]:
                raise WalkError(f"{command}\n    shows nothing: {absent[0]}")
        if words[0] != "train" or "--resume" in words or "--print-config" in words:
            return
        if "--out" in words:
            self.trained = self.home / words[words.index("--out") + 1]
        else:
            made = (self.home / "runs").glob("*/config.yaml")
            self.trained = max(made, key=lambda path: path.stat().st_mtime).parent
        config = yaml.safe_load((self.trained / "config.yaml").read_text())
        missing = lost(config, words)
        if missing:
            raise WalkError(f"{command}\n    does not arrive in config.yaml: {'; '.join(missing)}")

    def stopped(self, name: str) -> None:
        """Have a run under this name that was stopped after its second step."""
        run = self.home / name
        if self.trained is not None and not run.exists():
            shutil.copytree(self.trained, run)
        config = yaml.safe_load((run / "config.yaml").read_text())
        remove(run)
        again = self.home / "again.yaml"
        config["schedule"]["epochs"] = 2
        again.write_text(yaml.safe_dump(config))
        interrupt(["train", "--recipe", str(again), "--out", str(run), "--quiet"], 2)
        self.trained = run

    def serve(self, command: str) -> None:
        """Start a server, ask whether it is well, and stop it."""
        with self.serving(command):
            pass
        self.served.append(command)

    @contextlib.contextmanager
    def serving(self, command: str) -> Iterator[str]:
        """Serve while the block runs; give the address."""
        words = [*shlex.split(command), "--port", "0"]
        given = dict(word.split("=", 1) for word in words if word.startswith("SACCADE_TOKEN="))
        words = words[words.index("saccade") + 1 :]
        process = subprocess.Popen(
            [sys.executable, "-m", "saccade.cli", *words],
            cwd=self.home,
            env=self.environment() | given,
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process, alarm(LIMIT):
            try:
                told = ""
                for line in process.stdout or ():
                    told += line
                    if found := re.search(r"http://([\d.]+):(\d+)", told):
                        break
                else:
                    raise WalkError(f"{command}\n    ended: {told[-700:]}")
                address = f"http://127.0.0.1:{found[2]}"
                self.healthy(address, "/health" if words[0] == "serve" else "/")
                yield address
            finally:
                process.terminate()
                process.wait(90)
        if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM, 130):
            raise WalkError(f"{command}\n    ended with {process.returncode}")

    def healthy(self, address: str, path: str) -> None:
        until = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(address + path) as answer:
                    assert answer.status == 200
                return
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.3)

    def ask(self, command: str) -> None:
        """Ask the page's last server that needs no token."""
        server = [one for one in self.served if "TOKEN" not in one][-1]
        with self.serving(server) as address:
            self.shell(command.replace("http://127.0.0.1:8000", address).replace("curl ", "curl --fail -sS "))

    def example(self, item: Item) -> None:
        """Run a block of Python, made short, in the page's own namespace."""
        code = item.text
        for long, short in ((r"epochs=\d+", "epochs=1"), (r"seeds=\d+", "seeds=2"), (r'"10m"', '"40s"')):
            code = re.sub(long, short, code)
        self.lay(code)
        if "cells" in code:
            self.stand_ins.lay(self.home / "cells", "deep")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), alarm(LIMIT):
            exec(compile("\n" * (item.line - 1) + code, item.page, "exec"), self.names)


def absences(record: Any) -> Iterator[tuple[str, str]]:
    """Yield the views that numbers.json says are absent, with the reason."""
    for key, one in record.items() if isinstance(record, dict) else enumerate(record):
        if isinstance(one, dict) and "absent" in one:
            yield str(key), one["absent"]
        elif isinstance(one, dict | list):
            yield from absences(one)


@contextlib.contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Have what takes longer end with an error."""

    def late(*_: Any) -> None:
        raise WalkError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
