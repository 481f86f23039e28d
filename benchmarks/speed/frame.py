"""Time validation that counts pixels of the original images against one that counts those of the model's square.

    python benchmarks/speed/frame.py --device cuda --side 512 --images 128
    python benchmarks/speed/frame.py --device cpu --side 96 --images 16 --model resnet10t --batch-size 8

Images of one size and images of several sizes, which are in memory; validation, and epochs of training steps, which are
the same in both frames. Both have the same model, weights and images; rounds alternate, and the median counts.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from saccade.tasks.detection.runs import pack_runs

sys.path.append(str(Path(__file__).resolve().parent.parent / "accuracy"))
from steps import Ours, time_in_turns

HEADS = {"segment": "fpn:width=128,inner=64", "detect": "mask_rcnn:width=128,hidden=256"}
OPTIONS = {"segment": "segment", "detect": "detect:least=0"}  # an untrained detector is unsure
SIZES = {"one size": ((640, 480),), "several": ((640, 480), (480, 640), (500, 375), (333, 500), (640, 427))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--side", type=int, default=512, help="side of the model's square")
    parser.add_argument("--images", type=int, default=64, help="of training and of validation")
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for sizes in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            root = write_set(Path(folder), sizes, args)
            for task in HEADS:
                for what, square, image in compare(task, root, args):
                    rows.append(f"{task:10}{sizes:10}{what:12}{square:20.1f}{image:20.1f}{image / square:8.2f}")
    print(f"torch {torch.__version__}, {args.device}, {args.model}, {args.images} images, {args.side} px")
    print(f"{'task':10}{'images':10}{'':12}{'square, images/s':>20}{'image, images/s':>20}{'ratio':>8}")
    print("\n".join(rows))


class Validating:
    """Validations of a loop.

    Args:
        side: the loop that also trains.
    """

    def __init__(self, side: Ours) -> None:
        self.loop = side.loop

    def epoch(self, number: int) -> int:  # noqa: ARG002
        """Validate and return how many images that were."""
        self.loop.evaluate().compute()
        return len(self.loop.parts.data.val)


def compare(task: str, root: Path, args: argparse.Namespace) -> list[tuple[str, float, float]]:
    """Return images a second of validation and of training, in the square and in the image's own frame."""
    given = {
        "data.path": str(root / task),
        "data.img_size": args.side,
        "data.workers": 0,
        "data.resident": "always",
        "model.name": args.model,
        "model.head": HEADS[task],
        "optim.batch_size": args.batch_size,
        "engine.compile": False,
    }
    device, gpu = torch.device(args.device), args.device.startswith("cuda")
    sides = {
        frame: Ours(OPTIONS[task], given, root / f"{task}-{frame}", device, own_frame=frame == "image")
        for frame in ("square", "image")
    }
    found = []
    for what, timed in (("validation", {name: Validating(one) for name, one in sides.items()}), ("training", sides)):
        speeds = time_in_turns(timed, rounds=args.rounds, gpu=gpu)["images_per_second"]
        found.append((what, speeds["square"], speeds["image"]))
    return found


def write_set(root: Path, sizes: str, args: argparse.Namespace) -> Path:
    """Write images of rectangles with masks and, of the same images, lists of objects."""
    draws = np.random.default_rng(0)
    for part in ("train", "val"):
        for kind in ("segment/images", "segment/masks", "detect/images"):
            (root / kind / part).mkdir(parents=True)
        images, objects = [], []
        for number in range(args.images):
            width, height = SIZES[sizes][number % len(SIZES[sizes])]
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
