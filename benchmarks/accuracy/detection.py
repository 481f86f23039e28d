"""Train detectors on blood cells and nuclei, from random and from real weights, and time their steps.

    python benchmarks/accuracy/detection.py OUT --bccd BCCD --nuclei NUCLEI --weights efficientnet_lite0.safetensors
    python benchmarks/accuracy/detection.py OUT --stage speed --device cuda

BCCD (boxes) and NUCLEI (masks) are folders of COCO's layout. Stages, each written to OUT as it ends; an unfinished one
goes on where it stopped:

- tune:      one seed of several settings, to choose by;
- cells:     EfficientNet-Lite0 from random and from real weights on blood cells, compared over seeds;
- nuclei:    the same on nuclei, with masks;
- backbones: backbones in Mask R-CNN on nuclei from random weights, compared over seeds;
- detectors: six detectors on the real EfficientNet-Lite0 on blood cells, compared over seeds;
- speed:     training steps of Mask R-CNN here, and of torchvision's own on the same backbone in a plain loop;
- size:      parameters and multiplications of backbone and head at 800 x 1280.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from detection_peers import SWIN, SWIN_S, Theirs, make_noise
from one_process import NotConcludedError, leave_out_probes, share_process, share_processes, train_alone
from steps import Ours, Side, ended_with, time_in_turns
from torch import Tensor

from saccade import compare
from saccade.settings import parse_settings

LITE = "model=tf_efficientnet_lite0"
RANDOM = f"{LITE}+lr=1e-3"
BACKBONES = {"swin_tiny": f"model={SWIN}", "glnet_stl": "model=glnet_stl", "nommer_tiny": "model=nommer_tiny"}
# Anchors begin at the smallest objects: platelets of some 20 pixels, nuclei of some 15.
REGIONS = "mask_rcnn:width=128,hidden=512,sampled=256,proposals=500,anchor=4"
DENSE = "width=128"
DETECTORS = {
    "RetinaNet": f"retinanet:{DENSE},groups=32,anchor=2",
    "ATSS": f"atss:{DENSE},anchor=4",
    "RepPoints V2": f"reppoints_v2:{DENSE}",
    "Mask R-CNN": REGIONS,
    "Cascade Mask R-CNN": REGIONS.replace("mask_rcnn", "cascade"),
    "Sparse R-CNN": f"sparse_rcnn:{DENSE},proposals=100",
}
CELLS, NUCLEI = DETECTORS["ATSS"], REGIONS.replace("sampled=256", "sampled=512")
# Objects of an image that are told of: nuclei are many.
TASKS = {"bccd": "detect", "nuclei": "detect:kept=200"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder for what is found")
    parser.add_argument("--bccd", help="the blood cells")
    parser.add_argument("--nuclei", help="the nuclei")
    parser.add_argument("--weights", help="of EfficientNet-Lite0, as timm names its tensors")
    parser.add_argument("--stage", action="append", choices=list(STAGES), help="all but tune if not given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=None, help="runs side by side")
    parser.add_argument("--here", action="store_true", help="all runs one after another in this process")
    parser.add_argument("--staying", type=int, default=None, help="processes that stay, instead of one a run")
    parser.add_argument("--train", action="store_true", help="conclude nothing: call again without it for that")
    parser.add_argument("--unprobed", action="store_true", help="conclude without trainings at other learning rates")
    parser.add_argument("--epochs", type=int, default=None, help="instead of each stage's own")
    parser.add_argument("--side", type=int, default=None, help="of the images, instead of each stage's own")
    parser.add_argument("--only", action="append", help="names of arms, or of backbones for size, instead of all")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE, a setting of every run")
    parser.add_argument("--gate", type=Path, help="speed: warm up, then wait for this file before timing")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.here:
        share_process()
    if args.staying:
        share_processes(args.staying)
    if args.unprobed:
        leave_out_probes()
    if args.train:
        train_alone()
    for stage in args.stage or [name for name in STAGES if name != "tune"]:
        begun = time.perf_counter()
        try:
            found = STAGES[stage](args)
        except NotConcludedError:
            print(stage, "trained", round(time.perf_counter() - begun, 1), "s", flush=True)
            continue
        found["seconds"] = round(time.perf_counter() - begun, 1)
        (args.out / f"{stage}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(stage, json.dumps(found, indent=1), flush=True)


def tune(args: argparse.Namespace) -> dict[str, Any]:
    """One seed each of what is worth choosing between, on blood cells and on nuclei."""
    real = _real(args)
    cells = {
        "real": real,
        "real, statistics learned": f"{real}+model.keep_statistics=false",
        "real, one rate": f"{real}+lr=5e-4+optim.new_scale=1",
        "random": RANDOM,
        "random, slower": f"{LITE}+lr=5e-4",
    }
    found = {"cells": _compared(args, "tune_cells", "bccd", cells, head=CELLS, seeds=1, epochs=60, side=416)}
    nuclei = {"real": real, "random": RANDOM}
    found["nuclei"] = _compared(args, "tune_nuclei", "nuclei", nuclei, head=NUCLEI, seeds=1, epochs=30, side=384)
    return found


def cells(args: argparse.Namespace) -> dict[str, Any]:
    """EfficientNet-Lite0 from real and from random weights, blood cells."""
    return _compared(args, "cells", "bccd", _weights(args), head=CELLS, seeds=args.seeds, epochs=90, side=416)


def nuclei(args: argparse.Namespace) -> dict[str, Any]:
    """EfficientNet-Lite0 from real and from random weights, nuclei."""
    return _compared(args, "nuclei", "nuclei", _weights(args), head=NUCLEI, seeds=args.seeds, epochs=36, side=384)


def _weights(args: argparse.Namespace) -> dict[str, str]:
    return {"random weights": RANDOM, "real weights": _real(args)}


def _real(args: argparse.Namespace) -> str:
    """Return the arm of the real weights: the recipe for such."""
    return f"recipe=detect_finetune+{LITE}+checkpoint={args.weights}"


def backbones(args: argparse.Namespace) -> dict[str, Any]:
    """Backbones from random weights in Mask R-CNN under one schedule."""
    return _compared(args, "backbones", "nuclei", BACKBONES, head=NUCLEI, seeds=args.seeds, epochs=20, side=320)


def detectors(args: argparse.Namespace) -> dict[str, Any]:
    """Six detectors on one backbone with its real weights."""
    arms = {name: f"{_real(args)}+model.head='{head}'" for name, head in DETECTORS.items()}
    return _compared(args, "detectors", "bccd", arms, head=CELLS, seeds=args.seeds, epochs=30, side=320)


def _compared(
    args: argparse.Namespace,
    name: str,
    data: str,
    arms: dict[str, str],
    *,
    head: str,
    seeds: int,
    epochs: int,
    side: int,
) -> dict[str, Any]:
    """Compare arms by the recipes of the task, `detect` and `detect_finetune`."""
    epochs = args.epochs or epochs
    settings: dict[str, Any] = {
        "model.head": head,
        "keep.evaluate_every": epochs,  # nothing is chosen by what is judged
        "keep.every_seconds": 1e9,
        "engine.compile": False,  # minutes of compiling for runs of seconds
        "data.workers": 4,
    }
    arms = {arm: text for arm, text in arms.items() if args.only is None or arm in args.only}
    result = compare(
        getattr(args, data),
        arms=[f"{arm}:={text}" for arm, text in arms.items()],
        seeds=seeds,
        task=TASKS[data],
        epochs=epochs,
        img_size=args.side or side,
        out=args.out / name,
        device=args.device,
        parallel=args.parallel,
        seeds_fixed=seeds == 1,
        overwrite=True,
        settings=settings | parse_settings(args.set),
    )
    return {
        "runs": ended_with(args.out / name / "runs"),
        "words": result.to_markdown() if hasattr(result, "to_markdown") else str(result),
    }


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Images a second of whole steps, the sides in turns, the median over rounds."""
    device = torch.device(args.device)
    gpu = device.type == "cuda"
    side, batch, rounds, steps = (640, 8, 5, 12) if gpu else (64, 2, 1, 2)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "noise"
        make_noise(data, count=batch * steps, side=side)
        head = "mask_rcnn" if gpu else "mask_rcnn:width=32,hidden=64,sampled=32,proposals=50"
        given = {"data.path": str(data), "model.name": SWIN, "model.head": head, "data.img_size": side}
        given |= {"optim.batch_size": batch}
        built: dict[str, Side] = {}
        for name, compiled in (("saccade", gpu), ("saccade, not compiled", False)):
            run = Path(folder) / name.replace(", ", "-")
            built[name] = Ours("detect", given | {"engine.compile": compiled}, run, device)
        for name, compiled in (("torchvision, plain loop", False), ("torchvision, backbone compiled", gpu)):
            built[name] = Theirs(device, side, batch, steps, compiled=compiled)
        found = time_in_turns(built, rounds=rounds, gpu=gpu, gate=args.gate)
    return found | {"side": side, "batch": batch}


def size(args: argparse.Namespace) -> dict[str, Any]:
    """Parameters, and multiplications and additions in thousands of millions, of whole detectors of 80 classes.

    Nothing is computed: tensors have shapes alone, and every place of proposals and answers counts as filled.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    from saccade.building.build import build_model
    from saccade.data.spec import InputSpec
    from saccade.settings import ModelConfig
    from saccade.tasks.detection import roi, rpn

    roi.best_boxes = rpn.best_boxes = _all_filled
    roi.rows_needed = lambda _, most: most
    table = []
    for name, head in SIZES:
        if args.only and name not in args.only:
            continue
        spec = InputSpec(tuple(map(str, range(80))), 3, 224, [0.5] * 3, [0.5] * 3, task="detect")
        spec.extra["masks"] = True
        model: Any = build_model(ModelConfig(name=name, head=head), spec, seed=0).eval()
        row: dict[str, Any] = {
            "backbone": name,
            "head": head,
            "parameters_m": round(sum(p.numel() for p in model.parameters()) / 1e6, 1),
        }
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake, FlopCounterMode(display=False) as counted, torch.no_grad():
            model(torch.zeros(1, 3, 800, 1280))
        row["gflops_800x1280"] = round(counted.get_total_flops() / 2e9, 1)
        products = sum(value for name, value in counted.get_flop_counts()["Global"].items() if _multiplies(str(name)))
        row["of_attention"] = round(products / 2e9, 1)
        row["paper_parameters_m"], row["paper_gflops"] = PAPERS.get((name, head), (None, None))
        table.append(row)
        print(row, flush=True)
    return {"table": table}


def _all_filled(boxes: Tensor, *_: Any, count: int, **__: Any) -> tuple[Tensor, Tensor]:
    """Return places and which are filled, as `best_boxes` does, whatever the boxes are."""
    return torch.zeros(len(boxes), count, dtype=torch.int64), torch.ones(len(boxes), count, dtype=torch.bool)


def _multiplies(name: str) -> bool:
    """Say whether an operation multiplies answers with answers, as attention does, and not with weights."""
    return "bmm" in name or "scaled_dot_product" in name


# The papers' settings where they tell them, or where parameters and multiplications do: two coarser maps made of the
# backbone's last one, box heads of four convolutions and one layer and boxes per class in the cascade, three hundred
# learned boxes.
RETINA, CONVS = "retinanet:more=input", "cascade:convs=4,per_class=true"
SPARSE = "sparse_rcnn:proposals=300"
HEADS = (CONVS, "atss", "reppoints_v2", SPARSE)
SIZES = [
    *((name, head) for name in ("glnet_4g", "glnet_9g", SWIN, SWIN_S) for head in ("mask_rcnn", RETINA)),
    *((name, head) for name in ("nommer_tiny", SWIN, "resnet50") for head in HEADS),
    *((name, "mask_rcnn") for name in ("glnet_stl", "nommer_tiny", "vit_tiny_patch16_224")),
]
# Millions of parameters, and thousands of millions of multiply-adds at 800 x 1280: GLMix, table 4, and NomMer's
# supplement, table 2.
PAPERS: dict[tuple[str, str], tuple[float, float]] = {
    ("glnet_4g", RETINA): (37, 214),
    ("glnet_4g", "mask_rcnn"): (46.6, 233),
    ("glnet_9g", RETINA): (70, 292),
    ("glnet_9g", "mask_rcnn"): (79.5, 311),
    (SWIN_S, RETINA): (60, 335),
    (SWIN_S, "mask_rcnn"): (69.1, 354),
    (SWIN, RETINA): (39, 245),
    (SWIN, "mask_rcnn"): (47.8, 264),
    (SWIN, CONVS): (86, 745),
    (SWIN, "atss"): (36, 212),
    (SWIN, "reppoints_v2"): (44, 437),
    (SWIN, SPARSE): (110, 172),
    ("resnet50", CONVS): (82, 739),
    ("resnet50", "atss"): (32, 205),
    ("resnet50", "reppoints_v2"): (43, 431),
    ("resnet50", SPARSE): (106, 166),
    ("nommer_tiny", CONVS): (80, 755),
    ("nommer_tiny", "atss"): (30, 237),
    ("nommer_tiny", "reppoints_v2"): (41, 486),
    ("nommer_tiny", SPARSE): (104, 195),
}
STAGES = {
    "tune": tune,
    "cells": cells,
    "nuclei": nuclei,
    "backbones": backbones,
    "detectors": detectors,
    "speed": speed,
    "size": size,
}

if __name__ == "__main__":
    main()
