"""Training speed of this version beside another one's, in turn on the same machine.

python benchmarks/versions.py --other ../old/src [--device cuda] [--rounds 3]

Each case is trained by `saccade train` in a process of its own, this version and the other in turn; images/s are those
that the run wrote, the median over its epochs after the first third. The ratio is this version's over the other's.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

OURS = Path(__file__).parents[1] / "src"
VIT = '{"embed_dim": 64, "depth": 4, "num_heads": 2, "patch_size": 7}'
VIT_FILES = ["--model", "vit_tiny", "--epochs", "6", "--img-size", "28", "--set", f"model.options={VIT}"]
CASES = {
    "cpu": {
        "glnet_nano, arrays, recipe small": ("", ["--set", "data.train_limit=256", "--epochs", "3"]),
        "vit_tiny, arrays": (
            "",
            ["--model", "vit_tiny", "--set", "data.train_limit=2048", "--epochs", "6", "--set", f"model.options={VIT}"],
        ),
        "vit_tiny, files, random crops": (
            "files",
            [*VIT_FILES, "--set", "augment.crop=resized", "--set", "data.resident=never"],
        ),
    },
    "cuda": {
        "glnet_nano, arrays, recipe small": ("arrays", ["--epochs", "12"]),
        "vit_tiny, arrays": ("arrays", ["--model", "vit_tiny", "--epochs", "12"]),
        "vit_tiny + drloc, arrays": ("arrays", ["--model", "vit_tiny", "--plugin", "drloc", "--epochs", "12"]),
        "glnet_nano, files, random crops": (
            "files",
            ["--epochs", "12", "--img-size", "32", "--set", "augment.crop=resized", "--set", "engine.compile=false"],
        ),
    },
}


def write_files(root: Path) -> Path:
    """Write class folders of small photographs of noise."""
    for number in range(1024):
        draws = np.random.default_rng(number)
        small = Image.fromarray(draws.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        file = root / f"class{number % 4}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        small.resize((64, 48), Image.Resampling.BICUBIC).save(file, quality=90)
    return root


def write_arrays(path: Path) -> Path:
    """Write 40,000 training images of noise, as many as make an epoch long beside its beginning."""
    draws = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 40_000), ("test", 100)):
        arrays[f"x_{split}"] = draws.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 10
    np.savez(path, **arrays)
    return path


def train(source: Path, data: str, words: list[str], device: str, out: Path) -> float:
    """Return images/s of a run of one version."""
    command = [sys.executable, "-m", "saccade.cli", "train", *([data] if data else []), *words]
    command += ["--device", device, "--out", str(out), "--quiet", "--set", "keep.evaluate_every=1000"]
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(record["images_per_second"] for record in records[len(records) // 3 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the other version's folder `src`")
    parser.add_argument("--device", default="cpu", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", type=int, nargs="*", default=None, help="numbers of cases; all if not given")
    args = parser.parse_args()
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"torch {torch.__version__}, {machine}; images/s in training, median of {args.rounds} rounds in turn\n")
    print("| case | other | this | this / other | each round |\n| --- | --: | --: | --: | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made = {"": "", "files": str(write_files(Path(folder) / "files"))}
        made["arrays"] = str(write_arrays(Path(folder) / "arrays.npz"))
        for number, (name, (data, words)) in enumerate(CASES[args.device].items()):
            if args.cases is not None and number not in args.cases:
                continue
            found: list[tuple[float, float]] = []
            for turn in range(args.rounds):
                place = Path(folder) / f"{number}-{turn}"
                other = train(args.other, made[data], words, args.device, place.with_suffix(".other"))
                found.append((other, train(OURS, made[data], words, args.device, place.with_suffix(".this"))))
            other, ours = (statistics.median(values) for values in zip(*found, strict=True))
            each = ", ".join(f"{b / a:.3f}" for a, b in found)
            print(f"| {name} | {other:,.0f} | {ours:,.0f} | {ours / other:.3f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
