"""What a model answers: for whole pictures, or at every place."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .result import Answer
from .subject import Subject

BEST = 5  # classes of an answer


def read_output(output: Any) -> Any:
    """Return the tensor of a model's output, if it is one."""
    output = getattr(output, "logits", output)
    return output.get("out") if isinstance(output, Mapping) else output  # torchvision's segmenters


def is_dense(output: Any) -> bool:
    """Tell whether a model answers at every place, B, K, H, W."""
    tensor = read_output(output)
    return isinstance(tensor, Tensor) and tensor.ndim == 4


def find_logits(output: Any, count: int) -> Tensor | None:
    """Return the logits of classes, B, K; None where a model gives something else."""
    logits = read_output(output)
    logits = logits[0] if isinstance(logits, tuple) and logits else logits
    return logits if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == count else None


def name_answers(logits: Tensor, subject: Subject) -> list[Answer]:
    """Return the best classes of every picture with their shares."""
    classes = subject.shape.classes or tuple(f"class {index}" for index in range(logits.shape[1]))
    if logits.shape[1] != len(classes):
        raise ValueError(
            f"{subject.name} answers with {logits.shape[1]} numbers, but {len(classes)} classes are named; give the "
            "weights of the run whose classes these are, or a shape= with as many names"
        )
    best = logits.float().softmax(1).topk(min(BEST, len(classes)))
    return [
        [(classes[i], share) for i, share in zip(places, shares, strict=True)]
        for places, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


class Pooled(nn.Module):
    """A model that answers at every place, its answers averaged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean logits of each class, B, K."""
        return read_output(self.model(images)).mean((2, 3))
