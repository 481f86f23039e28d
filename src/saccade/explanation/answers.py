"""What a model answers: for whole pictures, or at every place."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ..loading import LoadedModel
from ..tasks import Answer

BEST = 5  # parts of an answer


def read_output(output: Any) -> Any:
    """Return the tensor of a model's output, if it is one."""
    output = getattr(output, "logits", output)
    return output.get("out") if isinstance(output, Mapping) else output  # torchvision's segmenters


def is_dense(output: Any) -> bool:
    """Tell whether a model answers at every place, B, K, H, W."""
    tensor = read_output(output)
    return isinstance(tensor, Tensor) and tensor.ndim == 4


def find_logits(output: Any, count: int) -> Tensor | None:
    """Return raw answers for whole pictures, B, K; None where a model gives something else."""
    logits = read_output(output)
    logits = logits[0] if isinstance(logits, tuple) and logits else logits
    return logits if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == count else None


def name_answers(output: Tensor, model: LoadedModel) -> list[Answer]:
    """Return what raw answers, B, K, say to people, by the model's task; classes without names get numbers."""
    spec, count = model.spec, output.shape[1]
    if not spec.outputs:
        spec = replace(spec, outputs=tuple(f"class {index}" for index in range(count)))
    if model.task.num_outputs(spec) != count:
        raise ValueError(
            f"{model.name} answers with {count} numbers, but {len(spec.outputs)} {model.task.outputs_key} are named; "
            "give the weights of the run whose answers these are, or a shape= with as many names"
        )
    rows = model.task.read_output(output.float().cpu().numpy(), spec)
    return [model.task.describe(row, spec, top=BEST) for row in rows]


class Pooled(nn.Module):
    """A model that answers at every place, its answers averaged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean logits of each class, B, K."""
        return read_output(self.model(images)).mean((2, 3))
