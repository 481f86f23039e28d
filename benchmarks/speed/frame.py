"""Time validation that counts pixels of the original images against one that counts those of the model's square.

python benchmarks/speed/frame.py --device cuda --side 512 --images 128
python benchmarks/speed/frame.py --device cpu --side 96 --images 16 --model resnet10t --batch-size 8

Both have the same model, weights and images, which are in memory; rounds alternate, and the median counts.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from saccade.building.build import build_model, build_task
from saccade.data.spec import IMAGE, InputSpec
from saccade.data.validation import Validation
from saccade.settings import AugmentConfig, DataConfig, LossConfig, ModelConfig
from saccade.tasks.detection.runs import pack_runs
from saccade.tasks.opening import open_samples
from saccade.training.parallel import World
from saccade.training.validate import validate

HEADS = {"segment": "fpn:width=128,inner=64", "detect": "mask_rcnn:width=128,hidden=256"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--side", type=int, default=512, help="side of the model's square")
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480), help="width and height of the images")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(
        f"torch {torch.__version__}, {args.device}, {args.model}, {args.images} images of {args.size}, {args.side} px"
    )
    print(f"{'task':10}{'square, images/s':>20}{'image, images/s':>20}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        root = write_set(Path(folder), args)
        for task in HEADS:
            square, image = compare(task, root / task, args)
            print(f"{task:10}{square:20.1f}{image:20.1f}{image / square:8.2f}")


def compare(name: str, root: Path, args: argparse.Namespace) -> tuple[float, float]:
    """Return images a second of validation in the square, and in the image's own frame."""
    choice, data = open_samples(name, DataConfig(path=str(root)))
    device, runs = torch.device(args.device), []
    for frame in ({}, {"frame": IMAGE}):
        extra = {"fit": True, "masks": name == "detect", "least": 0.0, **frame}  # an untrained detector is unsure
        spec = InputSpec(data.outputs, 3, args.side, [0.5] * 3, [0.5] * 3, task=name, extra=extra)
        config = ModelConfig(name=args.model, head=HEADS[name])
        task = build_task(build_model(config, spec, seed=0), choice, config, LossConfig(), spec, seed=0).to(device)
        codec = choice.kind.codec(spec)
        validation = Validation(
            data.val, encode=codec.encoder(), framing=spec.framing, batch_size=args.batch_size, device=device,
            keep=True, kept_on=device,
        )  # fmt: skip
        runs.append((task, validation, codec.expander(AugmentConfig(), LossConfig(), device=device)))
    seconds: list[list[float]] = [[], []]
    for _ in range(args.rounds + 1):
        for times, (task, validation, expand) in zip(seconds, runs, strict=True):
            validation.ready()
            begin = time.perf_counter()
            validate(task, validation, expand, World()).compute()
            times.append(time.perf_counter() - begin)
    square, image = (args.images / median(times[1:]) for times in seconds)  # the first round warms up
    return square, image


def write_set(root: Path, args: argparse.Namespace) -> Path:
    """Write images of rectangles with masks and, of the same images, lists of objects."""
    (width, height), draws = args.size, np.random.default_rng(0)
    for part, count in (("train", 2), ("val", args.images)):
        for kind in ("segment/images", "segment/masks", "detect/images"):
            (root / kind / part).mkdir(parents=True)
        images, objects = [], []
        for number in range(count):
            mask = np.zeros((height, width), np.uint8)
            images.append({"id": number, "file_name": f"images/{part}/{number}.png", "width": width, "height": height})
            for label in range(1, 11):
                wide, high = draws.integers(20, width // 3), draws.integers(20, height // 3)
                left, top = draws.integers(0, width - wide), draws.integers(0, height - high)
                own = np.zeros_like(mask)
                own[top : top + high, left : left + wide] = 1
                mask[own > 0] = label % args.classes
                one = {"id": len(objects) + 1, "image_id": number, "category_id": label % 3 + 1, "iscrowd": 0}
                one |= {"bbox": [int(left), int(top), int(wide), int(high)], "area": int(own.sum())}
                objects.append(one | {"segmentation": {"size": [height, width], "counts": pack_runs(own)}})
            image = Image.fromarray((mask[..., None] * np.array([40, 70, 11])).astype(np.uint8))
            image.save(root / "segment" / "images" / part / f"{number}.png")
            image.save(root / "detect" / "images" / part / f"{number}.png")
            Image.fromarray(mask).save(root / "segment" / "masks" / part / f"{number}.png")
        kinds = [{"id": number, "name": f"class {number}"} for number in (1, 2, 3)]
        whole = {"images": images, "annotations": objects, "categories": kinds}
        (root / "detect" / f"{part}.json").write_text(json.dumps(whole))
    names = "\n".join(f"class {number}" for number in range(args.classes))
    (root / "segment" / "classes.txt").write_text(names + "\n")
    return root


if __name__ == "__main__":
    main()
