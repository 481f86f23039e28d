"""The page of `table.py`: rows as Markdown."""

import json
import math
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import timm
import torch

import saccade

DEVICE = os.environ.get("DEV", "cuda")
SWIN = "swin_tiny_patch4_window7_224"
DEIT = "deit_small_patch16_224"
PLUGINS = ("plain", "again", "broadcast", "drloc", "second_order")
# Images/s of the published code on one H200: eager, compiled, training eager; 0 where it was not measured.
PUBLISHED = {"glnet_stl": (6332, 15047, 2277), "glnet_4g": (3311, 7779, 1191), "nommer_tiny": (4331, 7244, 1297)}
# Against swin_tiny, compiled: must and aim in inference, must and aim in training.
GOALS = {"glnet_stl": (1.35, 2.0, 1.15, 1.5), "glnet_4g": (0.8, 1.1, 0.8, 1.1)}


def read(file: Path) -> dict[str, Any]:
    """Return a row's results."""
    return json.loads(file.read_text()) if file.exists() else {"error": "ended without a result; see its log"}


def write(file: Path, found: dict[str, Any]) -> None:
    """Write a row's results whole or not at all."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1))
    part.replace(file)


def as_markdown(results: dict[str, dict[str, Any]]) -> str:
    """Return the tables: models against swin_tiny and the published code, plug-ins' shares, time over pixels."""

    def speed(name: str) -> float:
        return results.get(name, {}).get("images_per_second", math.nan)

    lines = [machine(), "", "| row | images/s | against swin_tiny | must / aim | against the published code | peak |"]
    lines += ["| --- | --: | --: | --- | --: | --: |"]
    for name, found in results.items():
        model, mode, *variant = name.split(".")
        if "error" in found:
            lines.append(f"| {name} | FAILED: {found['error'][:120]} | | | | |")
        if "images_per_second" not in found or (variant and variant[0] in PLUGINS):
            continue
        training = mode.startswith("train")
        peer = speed(f"{SWIN}.{'train' if training else 'infer'}")
        must = ""
        if model in GOALS and not mode.endswith("eager"):
            low, high = GOALS[model][2:] if training else GOALS[model][:2]
            must = f"{low:g}x / {high:g}x"
        theirs = PUBLISHED.get(model, (0, 0, 0))[2 if training else 0 if mode == "eager" else 1]
        against = f"{found['images_per_second'] / theirs:.2f}x" if theirs else ""
        ratio = "" if mode.endswith("eager") else f"{found['images_per_second'] / peer:.2f}x"
        memory = f"{found['peak_gib']:.1f} GiB" if "peak_gib" in found else ""
        lines.append(f"| {name} | {found['images_per_second']:,.0f} | {ratio} | {must} | {against} | {memory} |")
    lines += ["", "| replayed as a CUDA graph | images/s | against swin_tiny |", "| --- | --: | --: |"]
    peer = results.get(f"{SWIN}.train", {}).get("replayed_per_second", math.nan)
    for name, found in results.items():
        if "replayed_per_second" in found and name.split(".")[1:] == ["train"]:
            speed_ = found["replayed_per_second"]
            lines.append(f"| {name} | {speed_:,.0f} | {speed_ / peer:.2f}x |")
    lines += ["", "| training step, compiled | plain | again | broadcast | drloc | second_order |"]
    lines += ["| --- | --: | --: | --: | --: | --: |"]
    for model in (SWIN, DEIT):
        for key, words in (("ms", ""), ("replayed_ms", ", replayed")):
            plain = results.get(f"{model}.train.plain", {}).get(key, math.nan)
            shares = [results.get(f"{model}.train.{p}", {}).get(key, math.nan) / plain - 1 for p in PLUGINS[1:]]
            told = " | ".join(f"{share:+.1%}" for share in shares)
            lines.append(f"| {model}{words} | {plain:.2f} ms | {told} |")
    pixels = results.get("glnet_stl.pixels", {}).get("pixels")
    if pixels:
        (small, batch, first), (large, other, last) = pixels[0], pixels[-1]
        exponent = math.log((last / other) / (first / batch)) / math.log((large / small) ** 2)
        lines += ["", f"Time over pixels of glnet_stl, {small} to {large}, eager: exponent {exponent:.3f}; {pixels}"]
    return "\n".join(lines)


def machine() -> str:
    """Return the device, versions, date and command."""
    chip = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{platform.machine()} CPU"
    versions = f"python {platform.python_version()}, torch {torch.__version__}, timm {timm.__version__}"
    command = f"python benchmarks/speed/table.py {' '.join(sys.argv[1:])}"
    return f"{chip}; {versions}, saccade {saccade.__version__}; {time.strftime('%F')}\nCommand: {command}"
