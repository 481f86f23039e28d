"""Count what a step of a model must do at least, stage by stage: operations, and bytes through the GPU's memory.

    python benchmarks/speed/floor.py                       # the models below, batch 256, 224 pixels, half precision

Operations are those of products, convolutions and attention as PyTorch's counter sees them; in training three times as
many. Bytes: every product, convolution and attention reads its inputs and weights once and writes its output once, and
everything between two of them (norms, activations, sums) is taken to be fused into them at no cost; in training three
times as many, and AdamW reads and writes weights, gradients and both moments in float32. The floor of a stage is the
larger of operations over 790 TFLOP/s and bytes over 4.3 TB/s, as measured on an H200; nothing runs much faster, and a
kernel that fuses two of these steps undercuts the bytes. Models run on the meta device: nothing is computed.
"""

import argparse
from collections import defaultdict
from typing import Any

import timm
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import saccade  # noqa: F401 registers the backbones

MODELS = ["glnet_stl", "glnet_4g", "nommer_tiny", "sot_small", "swin_tiny_patch4_window7_224"]
RATE, BANDWIDTH = 790e12, 4.3e12
HALF = 2  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be given several times")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="image side")
    args = parser.parse_args()
    print("| model | part | GFLOP | GB | products, ms | memory, ms | floor, ms | training, ms |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    for name in args.model or MODELS:
        print(table(name, args.batch_size, args.size), flush=True)


def table(name: str, batch: int, size: int) -> str:
    """Return a model's rows and their sum."""
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        images = torch.empty(batch, 3, size, size)
    counter = Counter(parts_of(model))
    with torch.no_grad(), counter:
        model(images)
    weights = sum(p.numel() for p in model.parameters())
    lines, total = [], [0.0] * 4
    for part, (operations, moved) in counter.found.items():
        floor = 1e3 * max(operations / RATE, moved / BANDWIDTH)
        total = [a + b for a, b in zip(total, (operations, moved, floor, 3 * floor), strict=True)]
        lines.append(row(name, part, operations, moved, floor, 3 * floor))
    update = 1e3 * weights * 28 / BANDWIDTH  # read weight, gradient, two moments; write weight, two moments
    total[3] += update
    lines.append(row(name, "AdamW", 0, 0, 0, update))
    lines.append(row(name, f"**all: at most {batch / total[2] * 1e3:,.0f} images/s**", *total))
    return "\n".join(lines)


def row(name: str, part: str, operations: float, moved: float, floor: float, training: float) -> str:
    """Return a line of the table."""
    return (
        f"| {name} | {part} | {operations / 1e9:,.0f} | {moved / 1e9:.2f} | {1e3 * operations / RATE:.2f} "
        f"| {1e3 * moved / BANDWIDTH:.2f} | {floor:.2f} | {training:.2f} |"
    )


def parts_of(model: nn.Module) -> dict[nn.Module, str]:
    """Return the parts that are told apart: the stem or embedding, the stages, or the blocks together, and the rest."""
    parts = {}
    for name, module in model.named_children():
        if name in ("stages", "layers"):
            parts |= {stage: f"stage {index + 1}" for index, stage in enumerate(module.children())}
        elif name == "blocks":
            parts |= dict.fromkeys(module.children(), "blocks")
        else:
            parts[module] = {"patch_embed": "embedding"}.get(name, name)
    return parts


class Counter(TorchDispatchMode):
    """One run of a model that adds up operations and bytes for each of its parts."""

    def __init__(self, parts: dict[nn.Module, str]) -> None:
        super().__init__()
        self.found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.part = "rest"
        for module, name in parts.items():
            module.register_forward_pre_hook(lambda *_, name=name: setattr(self, "part", name))
            module.register_forward_hook(lambda *_: setattr(self, "part", "rest"))

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.found[self.part][0] += count(*args, **(kwargs or {}), out_val=out)
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            memory = {t.untyped_storage()._cdata: t for t in tensors}  # queries, keys and values may be one tensor
            numbers = sum(t.untyped_storage().nbytes() // t.element_size() for t in memory.values())
            self.found[self.part][1] += HALF * numbers
        return out


if __name__ == "__main__":
    main()
