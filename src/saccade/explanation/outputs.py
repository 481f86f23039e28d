"""Read model outputs: per image, or dense."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..building.loading import LoadedModel
from ..tasks import Answer

BEST = 5  # most classes shown

Text = str | Tensor | Mapping[str, Any]


def read_output(output: Any) -> Any:
    """Return the tensor of a model's output, if there is one."""
    output = getattr(output, "logits", output)
    return output.get("out") if isinstance(output, Mapping) else output  # torchvision's segmenters


def is_dense(output: Any) -> bool:
    """Whether an output is dense, B, K, H, W."""
    tensor = read_output(output)
    return isinstance(tensor, Tensor) and tensor.ndim == 4


def find_logits(output: Any, count: int) -> Tensor | None:
    """Return logits per image, B, K; None for other outputs."""
    logits = read_output(output)
    logits = logits[0] if isinstance(logits, tuple) and logits else logits
    return logits if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == count else None


def name_answers(output: Tensor, model: LoadedModel, sizes: Sequence[tuple[int, int]]) -> list[Answer]:
    """Return answers with names, for logits B, K, masks or objects; unnamed classes get numbers.

    Args:
        sizes: height and width of the original images.
    """
    spec, count = model.spec, len(model.spec.outputs) if model.task.presenter.boxes else output.shape[1]
    if not spec.outputs:
        spec = replace(spec, outputs=tuple(f"class {index}" for index in range(count)))
    presenter = model.task.presenter(spec)
    if len(spec.outputs) != count:
        raise ValueError(
            f"{model.name} has {count} outputs, but {len(spec.outputs)} {presenter.outputs_key} are named; give the "
            "weights of the run that the names belong to, or a shape= with as many names"
        )
    codec = model.task.codec(spec)
    rows = codec.read_output(output.float().cpu().numpy())
    return [presenter.describe(codec.unframe(row, size), top=BEST) for row, size in zip(rows, sizes, strict=True)]


class Pooled(nn.Module):
    """A dense model with averaged outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean logits of each class, B, K."""
        return read_output(self.model(images)).mean((2, 3))


def choose_targets(logits: Tensor, targets: int | Sequence[int] | None) -> Tensor:
    """Return the target class of each sample of logits, B, K; default: the highest."""
    if targets is None:
        return logits.detach().argmax(dim=1)
    count, classes = logits.shape
    chosen = [targets] * count if isinstance(targets, int) else list(targets)
    if len(chosen) != count or not all(0 <= target < classes for target in chosen):
        raise ValueError(f"classes {chosen}: give a number from 0 to {classes - 1} for each of {count} samples")
    return torch.tensor(chosen, device=logits.device)


def name_class(target: int, classes: Sequence[str] | None) -> str:
    """Return the name of a class."""
    return classes[target] if classes is not None else f"class {target}"


def read_text(text: Text, tokenizer: Any, device: torch.device) -> Tensor | dict[str, Any]:
    """Return a text model's input on its device: token ids, or named inputs.

    Args:
        text: token ids, 1, N; named inputs; or a string.
        tokenizer: Hugging Face tokenizer, for strings.
        device: the model's device.
    """
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError("a text needs a tokenizer; pass tokenizer=, or token ids with words=")
        text = dict(tokenizer(text, return_tensors="pt"))
    if isinstance(text, Tensor):
        return text.to(device)
    if not isinstance(text, Mapping) or "input_ids" not in text:
        raise TypeError(
            f"a text is {type(text).__name__}; give a string with tokenizer=, token ids of shape 1, N, or a mapping "
            "with input_ids"
        )
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in text.items()}
