"""Swap 5 % of the labels of a set, train linear probes over folds on them, and look for the labels by their answers.

    python benchmarks/statistics/swapped_labels.py --images cifar10.npz --weights lite0.safetensors --draws 5

What `benchmarks/accuracy/finetune.py --stage labels` does with fine-tuned networks on a GPU, for a CPU: the features of
a network with trained weights are computed once, and a classifier on them is trained for every fold with the labels as
swapped.
"""

import argparse

import numpy as np
import torch
from torch import Tensor

from saccade.building.build import build_model
from saccade.data.open import open_data
from saccade.data.spec import InputSpec
from saccade.evaluation.suspects import CUT, fit, posterior
from saccade.settings import ModelConfig

SHARE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--model", default="tf_efficientnet_lite0")
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=5, help="of which labels are swapped")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    features, labels, classes = embed(args)
    print("| draw | accuracy by right labels | swapped | listed | precision | recall | estimated precision, recall |")
    print("| --: | --: | --: | --: | --: | --: | --: |")
    for draw in range(args.draws):
        print(look(features, labels, classes, args.folds, draw), flush=True)


def embed(args: argparse.Namespace) -> tuple[Tensor, np.ndarray, int]:
    """Return pooled features of some images, their classes and how many classes there are."""
    whole = open_data(args.images, folds=2).whole
    assert whole is not None
    mine = np.random.default_rng(0).permutation(len(whole))[: args.samples]
    pixels = whole.array()
    assert pixels is not None
    spec = InputSpec(outputs=whole.outputs, in_chans=3, img_size=args.side, mean=[0.5] * 3, std=[0.5] * 3)
    spec.task = "classify"
    model = build_model(ModelConfig(name=args.model, checkpoint=args.weights), spec, seed=0).eval().to(args.device)
    found = []
    for part in torch.from_numpy(pixels[mine]).split(100):
        x = part.to(args.device).permute(0, 3, 1, 2).float() / 127.5 - 1
        x = torch.nn.functional.interpolate(x, (args.side, args.side), mode="bicubic", antialias=True)
        with torch.no_grad():
            found.append(model.forward_head(model.forward_features(x), pre_logits=True))  # type: ignore[operator]
    x = torch.cat(found).float()
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-6), whole.labels[mine], len(whole.outputs)


def look(features: Tensor, right: np.ndarray, classes: int, folds: int, draw: int) -> str:
    """Return a row: how well swapped labels are found."""
    draws = np.random.default_rng([5, draw])
    swapped = draws.random(len(right)) < SHARE
    given = right.copy()
    given[swapped] = (right[swapped] + draws.integers(1, classes, swapped.sum())) % classes
    fold = draws.permutation(len(right)) % folds
    logits = np.empty((len(right), classes), np.float32)
    for k in range(folds):
        out = torch.from_numpy(fold == k)
        logits[fold == k] = probe(features[~out], torch.from_numpy(given)[~out], features[out], classes)
    shares, _, noise = fit(logits, given)
    wrong = posterior(shares, given, noise)
    listed = wrong >= CUT
    hits = int((listed & swapped).sum())
    told = f"{wrong[listed].mean() if listed.any() else 0:.2f}, {wrong[listed].sum() / max(wrong.sum(), 1e-9):.2f}"
    accuracy = (logits.argmax(1) == right).mean()
    scores = f"{hits / max(int(listed.sum()), 1):.2f} | {hits / int(swapped.sum()):.2f}"
    return f"| {draw} | {accuracy:.1%} | {swapped.sum()} | {listed.sum()} | {scores} | {told} |"


def probe(x: Tensor, y: Tensor, asked: Tensor, classes: int) -> np.ndarray:
    """Return the logits of a linear classifier, trained by full gradients with weight decay."""
    weight = torch.zeros(x.shape[1], classes, device=x.device, requires_grad=True)
    bias = torch.zeros(classes, device=x.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60)

    def close() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weight + bias, y) + 2e-3 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(close)
    return (asked @ weight + bias).detach().cpu().numpy()


if __name__ == "__main__":
    main()
