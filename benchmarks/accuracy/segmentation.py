"""Train segmenters on the trimaps of pets, from random and from real weights, and time their steps.

    python benchmarks/accuracy/segmentation.py OUT --data PETS --weights efficientnet_lite0.safetensors --device cuda
    python benchmarks/accuracy/segmentation.py OUT --data PETS --stage speed --device cuda

PETS is a folder of images/{train,val} and masks/{train,val}. Stages, each written to OUT as it ends:

- tune:    one seed of several settings on the real weights and from scratch, to choose by;
- weights: EfficientNet-Lite0 from random and from real weights, compared over seeds;
- recipes: EfficientNet-Lite0 by the recipes `segment` and `segment_finetune`, with several layer-wise decays;
- scratch: backbones under the same head and schedule from random weights, compared over seeds;
- speed:   training steps of swin_tiny + UPerNet here, and of segmentation-models-pytorch's own in a plain loop;
- size:    parameters and multiplications of backbone and head at 512 x 512 and 512 x 2048.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from one_process import share_process
from PIL import Image
from steps import Ours, ended_with, time_in_turns
from torch import nn

from saccade import compare

BACKBONES = {
    "swin_tiny": "model=swin_tiny_patch4_window7_224",
    "glnet_stl": "model=glnet_stl",
    "nommer_tiny": "model=nommer_tiny",
    "vit_small": "model=vit_small_patch16_224",
    "vit_small + CB": "model=vit_small_patch16_224+broadcast:spare_pyramid=true",
    "glnet_nano": "model=glnet_nano",
}
LITE = "model=tf_efficientnet_lite0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder for what is found")
    parser.add_argument("--data", help="the pets")
    parser.add_argument("--weights", help="of EfficientNet-Lite0, as timm names its tensors")
    parser.add_argument("--stage", action="append", choices=list(STAGES), help="all but tune and recipes if not given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=None, help="runs side by side")
    parser.add_argument("--here", action="store_true", help="all runs one after another in this process")
    parser.add_argument("--epochs", type=int, default=None, help="instead of each stage's own")
    parser.add_argument("--side", type=int, default=None, help="of the images, instead of each stage's own")
    parser.add_argument("--head", default="upernet:width=128,aux=64")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, a setting of every run")
    parser.add_argument("--gate", type=Path, help="speed: warm up, then wait for this file before timing")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.here:
        share_process()
    for stage in args.stage or [name for name in STAGES if name not in ("tune", "recipes")]:
        begun = time.perf_counter()
        found = STAGES[stage](args)
        found["seconds"] = round(time.perf_counter() - begun, 1)
        (args.out / f"{stage}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(stage, json.dumps(found, indent=1), flush=True)


def tune(args: argparse.Namespace) -> dict[str, Any]:
    """One seed each of what is worth choosing between."""
    real = f"{LITE}+model.checkpoint={args.weights}"
    arms = {
        "real": real,
        "real dice": f"{real}+task='segment:loss=ce+dice'",
        "real slow": f"{real}+lr=3e-4",
        "real fpn": f"{real}+model.head='fpn:width=128,inner=64'",
        "real large": f"{real}+img_size=320",
        "random": f"{LITE}+epochs=200",
        "random nano": "model=glnet_nano+epochs=200",
        "random large": f"{LITE}+epochs=200+img_size=320",
    }
    return _compared(args, "tune", arms, seeds=1, epochs=60, side=256, fixed=True)


def weights(args: argparse.Namespace) -> dict[str, Any]:
    """EfficientNet-Lite0 from real and from random weights."""
    arms = {"random weights": LITE, "real weights": f"{LITE}+model.checkpoint={args.weights}"}
    return _compared(args, "weights", arms, seeds=args.seeds, epochs=200, side=256)


def recipes(args: argparse.Namespace) -> dict[str, Any]:
    """EfficientNet-Lite0 by the task's recipes: from scratch, and from real weights with several layer-wise decays."""
    real = f"recipe=segment_finetune+{LITE}+checkpoint={args.weights}"
    decays = {f"decay {decay}": f"{real}+optim.layer_decay={decay}" for decay in (1.0, 0.75)}
    settings = {"model.head": args.head, "keep.every_seconds": 1e9, "engine.compile": False}
    arms = {"scratch": f"recipe=segment+{LITE}", **decays}
    return _compared(args, "recipes", arms, seeds=args.seeds, epochs=20, side=128, settings=settings)


def scratch(args: argparse.Namespace) -> dict[str, Any]:
    """Backbones from random weights under one head and schedule."""
    return _compared(args, "scratch", BACKBONES, seeds=args.seeds, epochs=120, side=192)


def _compared(
    args: argparse.Namespace,
    name: str,
    arms: dict[str, str],
    *,
    seeds: int,
    epochs: int,
    side: int,
    fixed: bool = False,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    from saccade.settings import parse_settings

    if settings is None:
        arms = {arm: f"recipe=segment+{text}" for arm, text in arms.items()}
    own: dict[str, Any] = {
        "model.head": args.head,
        "optim.batch_size": 32,
        "optim.lr": 1e-3 if name != "scratch" else 7e-4,
        "keep.evaluate_every": 20,
        "keep.every_seconds": 1e9,
        "keep.ema": 0.998,
        "augment.jitter": 0.5,
        "engine.compile": False,  # minutes of compiling for runs of seconds
        "data.workers": 4,
    }
    result = compare(
        args.data,
        arms=[f"{arm}:={text}" for arm, text in arms.items()],
        seeds=seeds,
        task="segment",
        epochs=args.epochs or epochs,
        img_size=args.side or side,
        out=args.out / name,
        device=args.device,
        parallel=args.parallel,
        seeds_fixed=fixed,
        overwrite=True,
        settings=(own if settings is None else settings) | parse_settings(args.set),
    )
    return {
        "runs": ended_with(args.out / name / "runs"),
        "words": result.to_markdown() if hasattr(result, "to_markdown") else str(result),
    }


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Images a second of whole steps, the sides in turns, the median over rounds."""
    device = torch.device(args.device)
    gpu = device.type == "cuda"
    side, batch, rounds, steps = (512, 16, 5, 12) if gpu else (64, 4, 2, 2)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "noise"
        make_noise(data, count=batch * steps, side=side)
        given = {"data.path": str(data), "model.name": "swin_tiny_patch4_window7_224", "data.img_size": side}
        given |= {"model.head": "upernet:width=256,aux=0", "optim.batch_size": batch}
        sides: dict[str, Any] = {}
        for name, compiled in (("saccade", gpu), ("saccade, not compiled", False)):
            run = Path(folder) / name.replace(", ", "-")
            sides[name] = Ours("segment", given | {"engine.compile": compiled}, run, device)
        for name, compiled in (("smp, plain loop", False), ("smp, compiled", True))[: 2 if gpu else 1]:
            sides[name] = Theirs(device, side, batch, steps, compiled=compiled)
        found = time_in_turns(sides, rounds=rounds, gpu=gpu, gate=args.gate)
    return found | {"side": side, "batch": batch}


def make_noise(root: Path, *, count: int, side: int) -> None:
    """Write images and masks to train on for the clock's sake."""
    draws = np.random.default_rng(0)
    for part, number in (("train", count), ("val", 2)):
        for kind in ("images", "masks"):
            (root / kind / part).mkdir(parents=True)
        for place in range(number):
            small = Image.fromarray(draws.integers(0, 255, (16, 16, 3), dtype=np.uint8))
            small.resize((side, side)).save(root / "images" / part / f"{place}.jpg")
            mask = draws.integers(0, 150, (16, 16), dtype=np.uint8)
            Image.fromarray(mask).resize((side, side), Image.Resampling.NEAREST).save(
                root / "masks" / part / f"{place}.png"
            )
    (root / "classes.txt").write_text("\n".join(f"class {number}" for number in range(150)), encoding="utf-8")


class Theirs:
    """segmentation-models-pytorch's UPerNet in the loop that its documentation shows, images already on the device."""

    def __init__(self, device: torch.device, side: int, batch: int, steps: int, *, compiled: bool) -> None:
        import segmentation_models_pytorch as smp

        self.device, self.steps, self.batch = device, steps, batch
        model = smp.UPerNet(
            "tu-swin_tiny_patch4_window7_224", encoder_weights=None, decoder_channels=256, classes=150, img_size=side
        )
        self.model: nn.Module = model.to(device).train()
        if device.type == "cuda":
            self.model = self.model.to(memory_format=torch.channels_last)
        self.called = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device.type == "cuda")
        self.images = torch.randn(batch, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
        self.masks = torch.randint(0, 150, (batch, side, side), device=device)

    def epoch(self, number: int) -> int:  # noqa: ARG002
        for _ in range(self.steps):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = nn.functional.cross_entropy(self.called(self.images).float(), self.masks)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return self.steps * self.batch


def size(args: argparse.Namespace) -> dict[str, Any]:  # noqa: ARG001
    """Parameters, and multiplications and additions in thousands of millions, of whole segmenters of 150 classes."""
    from torch.utils.flop_counter import FlopCounterMode

    from saccade.building.build import build_model
    from saccade.data.spec import InputSpec
    from saccade.settings import ModelConfig

    table = []
    for name, head in SIZES:
        row: dict[str, Any] = {"backbone": name, "head": head}
        for height, width in ((512, 512), (512, 2048)):
            spec = InputSpec(tuple(map(str, range(150))), 3, 512, [0.5] * 3, [0.5] * 3, task="segment")
            with torch.device("cpu"):
                model = build_model(ModelConfig(name=name, head=head), spec, seed=0).eval()
            model = model.to("meta")
            with FlopCounterMode(display=False) as counted, torch.no_grad():
                model(torch.empty(1, 3, height, width, device="meta"))
            row["parameters_m"] = round(sum(p.numel() for p in model.parameters()) / 1e6, 1)
            row[f"gflops_{height}x{width}"] = round(counted.get_total_flops() / 2e9, 1)
            products = counted.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0)
            row[f"of_attention_{height}x{width}"] = round(products / 2e9, 1)
        row["paper_parameters_m"], row["paper_gflops_512x2048"] = PAPERS.get((name, head), (None, None))
        table.append(row)
        print(row, flush=True)
    return {"table": table}


FPN, UPERNET = "fpn:width=256,inner=128,smooth=true", "upernet:width=512,aux=256"
SIZES = [
    ("glnet_stl", FPN),
    ("glnet_stl", UPERNET),
    ("glnet_4g", FPN),
    ("glnet_4g", UPERNET),
    ("glnet_9g", FPN),
    ("glnet_9g", UPERNET),
    ("nommer_tiny", UPERNET),
    ("swin_tiny_patch4_window7_224", FPN),
    ("swin_tiny_patch4_window7_224", UPERNET),
    ("swin_small_patch4_window7_224", FPN),
    ("swin_small_patch4_window7_224", UPERNET),
    ("vit_tiny_patch16_224", UPERNET),
    ("vit_small_patch16_224", UPERNET),
    ("vit_base_patch16_224", UPERNET),
]
# Millions of parameters, and thousands of millions of multiply-adds at 512 x 2048: GLMix, table 5, and Context
# Broadcasting, table 6.
PAPERS: dict[tuple[str, str], tuple[float, int | None]] = {
    ("glnet_4g", FPN): (30.7, 150),
    ("glnet_4g", UPERNET): (56.8, 907),
    ("glnet_9g", FPN): (63.6, 230),
    ("glnet_9g", UPERNET): (91.7, 988),
    ("swin_tiny_patch4_window7_224", FPN): (31.9, 182),
    ("swin_tiny_patch4_window7_224", UPERNET): (59.9, 945),
    ("swin_small_patch4_window7_224", FPN): (53.2, 274),
    ("swin_small_patch4_window7_224", UPERNET): (81.3, 1038),
    ("vit_tiny_patch16_224", UPERNET): (34.1, None),
    ("vit_small_patch16_224", UPERNET): (53.5, None),
    ("vit_base_patch16_224", UPERNET): (127.0, None),
}
STAGES = {"tune": tune, "weights": weights, "recipes": recipes, "scratch": scratch, "speed": speed, "size": size}

if __name__ == "__main__":
    main()
