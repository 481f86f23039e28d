"""Hold RandAugment and erasing against timm's on the same photographs, one operation at a time, and print a table.

    python benchmarks/peers/augmentation.py > benchmarks/peers/results/augmentation.md

Each operation is drawn as in a recipe: magnitude 9 with deviation 0.5, done with probability 0.5. Of every result some
numbers are taken; the table gives the smallest p-value of the two-sample Kolmogorov-Smirnov tests over them, which is
to be held against the number of tests, and means of both sides. Needs scikit-learn for its two photographs.
"""

import argparse
import sys
from pathlib import Path

import timm
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from saccade.data.augment import Augment
from saccade.data.draws import key
from saccade.data.rand_augment import NONE, NUMBER, OPERATIONS, Step, erase_pixels
from saccade.settings import AugmentConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support import timm_augment as theirs

TIMM = AugmentConfig(
    crop="none",
    flip=0.0,
    rand_ops=2,
    rand_magnitude=9.0,
    rand_spread=0.5,
    rand_kind="timm",
    rand_prob=0.5,
    rand_interpolation="bicubic",
)
FILL = torch.tensor(theirs.FILL).float().view(3, 1, 1)


def photographs(side: int) -> Tensor:
    """Return four squares of two photographs, bytes in floats, 4, 3, side, side."""
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

    found = []
    for image in load_sample_images().images:
        whole = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
        for left in (0, whole.shape[3] - whole.shape[2]):
            square = whole[:, :, :, left : left + whole.shape[2]]
            found.append(torch.nn.functional.interpolate(square, size=(side, side), mode="bicubic", antialias=True))
    return torch.cat(found).clamp(0, 255).round()


def ours(name: str, images: Tensor, keys: Tensor) -> Tensor:
    """Return images after our operation, drawn as in a policy."""
    drawn = Step.draw(keys, 0, TIMM)
    only = torch.where(drawn.operation == NONE, NONE, NUMBER[name])
    return Step(only, drawn.level, drawn.sign, drawn.cubic)(images, FILL)


def row(name: str, images: Tensor, want: Tensor, found: Tensor) -> str:
    left, right = (theirs.statistics(images, made) for made in (want, found))
    tests = {kind: float(ks_2samp(left[kind], right[kind]).pvalue) for kind in left}
    worst = min(tests, key=lambda kind: tests[kind])
    shown = " | ".join(f"{left[k].mean():.2f} / {right[k].mean():.2f}" for k in ("change", "mean", "deviation"))
    return f"| {name} | {shown} | {tests[worst]:.3f} ({worst}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000, help="of each operation")
    parser.add_argument("--side", type=int, default=96, help="of the photographs, in pixels")
    args = parser.parse_args()
    few = photographs(args.side)
    images = few.repeat(-(-args.draws // len(few)), 1, 1, 1)[: args.draws]
    keys = key(0, 1, torch.arange(args.draws))
    print(f"torch {torch.__version__}, timm {timm.__version__}; {args.draws} draws, {args.side} pixels; timm / ours\n")
    print("| operation | mean change | mean | deviation | smallest p of 9 |\n| --- | --: | --: | --: | --: |")
    with theirs.seeded(0):
        for name in OPERATIONS:
            want = torch.stack([theirs.one(name, image, magnitude=9, spread=0.5, prob=0.5) for image in images])
            print(row(name, images, want, ours(name, images, keys)), flush=True)
        whole = Augment(TIMM, mean=theirs.MEAN, std=[1.0] * 3, img_size=args.side)
        made = whole({"image": images.to(torch.uint8), "key": keys})["image"]
        made = ((made + torch.tensor(theirs.MEAN).view(3, 1, 1)) * 255).round()
        print(row(f"{theirs.POLICY}, both operations", images, theirs.policy(images), made))
        normal = (images / 255 - 0.45) / 0.22
        want, found = theirs.erased(normal, 0.25), erase_pixels(normal, keys, 0.25)
        print(row("erasing, pixel, 0.25 (normalised)", normal, want, found))
        print(
            row("erasing, pixel, 1.0 (normalised)", normal, theirs.erased(normal, 1.0), erase_pixels(normal, keys, 1))
        )
    print(
        f"\n{(len(OPERATIONS) + 3) * 9} tests: the smallest p is expected near {1 / ((len(OPERATIONS) + 3) * 9):.3f}."
    )


if __name__ == "__main__":
    main()
