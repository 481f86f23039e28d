"""Token labelling: a model also predicts the class of every token, from a teacher's dense labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.feed import Batch
from ...data.framing import Encoded, Encoder
from ...data.source import Sample
from ...layers.init import init_linear
from ...layers.numerics import upcast
from ...layers.token_label import (
    TokenBox,
    TokenLabelOutput,
    draw_place,
    place_box,
    swap_box,
    token_label_terms,
)
from ...plugins.registry import register_plugin
from ...plugins.tokens import CLASS_OUTPUT, HostError, Layout, find_host
from ..classification.task import find_late_fusion, read_logits
from .grids import GridRecorder, move_like, norm_path
from .label_maps import LabelMaps
from .teacher import SoftLabels, Teacher, TeacherLabels, WithTeacher, count_classes, require_other, resample

Features = Callable[[nn.Module, Tensor], tuple[Any, Tensor]]
NO_BOX = TokenBox(0, 0, 0, 0)


@register_plugin("token_label")
class TokenLabelling(WithTeacher):
    """Trains a classifier on soft labels of each image and of each token, with MixToken in place of mixup.

    A GLNet built with `token_label=True` has its own token classifier. Other models get a linear layer on the last
    feature grid, which is part of the task, not of `task.model`; MixToken then swaps boxes of pixels along token
    borders, which is equivalent to swapping embeddings of non-overlapping patches. Labels are from a teacher, from disk
    (`maps`), or, without either, the image's.

    Args:
        model: a classifier with a feature grid.
        teacher: timm model with the same classes, or `TeacherLabels`; frozen, not part of the task's state.
        maps: stored labels (`saccade data labels`); batches contain them through `read_along`, otherwise every step
            needs `names`, and `crops` and `flips` if there are any.
        cls_weight: weight of the class term.
        dense_weight: weight of the token term.
        mix_token: use MixToken in training.
        ground_truth: blend the teacher's image label with the target: 10% of it, or 50% if both agree.
        smoothing: label smoothing s: a probability p becomes p (1 - s + s / classes) + s / classes, as published.
        num_classes: number of classes, if not detected.
        norm: read tokens after the final norm; default: if there is one.
        dim: width of the features, if not detected.
        features: path of the module that returns the grid, or a function of model and images that returns output and
            features, if not detected.
        grid: rows and columns of the tokens, if not detected.
        prefix_tokens: number of tokens before those of the grid, if not detected.
        layout: layout of the features, if not detected.
        settings: options of `Classify`: class_weights, which apply to every label as to soft labels.
    """

    teacher: TeacherLabels | None

    def __init__(
        self,
        model: nn.Module,
        teacher: nn.Module | TeacherLabels | None = None,
        *,
        maps: LabelMaps | None = None,
        cls_weight: float = 1.0,
        dense_weight: float = 0.5,
        mix_token: bool = True,
        ground_truth: bool = False,
        smoothing: float = 0.1,
        num_classes: int | None = None,
        norm: bool | None = None,
        dim: int | None = None,
        features: str | Features | None = None,
        grid: tuple[int, int] | None = None,
        prefix_tokens: int | None = None,
        layout: Layout | None = None,
        **settings: Any,
    ) -> None:
        if "label_smoothing" in settings:
            raise TypeError(
                "label_smoothing was given, but token labelling smooths all labels in the same way; give smoothing= "
                "instead"
            )
        super().__init__(model, **settings)
        if find_late_fusion(model) is not None:
            raise ValueError(
                "the model's head trains two classifiers (fusion=late), but token labelling trains one; choose "
                "another fusion, or late=scores"
            )
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing={smoothing} was given; it must be from 0 to below 1")
        if teacher is not None and maps is not None:
            raise ValueError("both teacher= and maps= were given; give only the one that provides the labels")
        if teacher is not None:
            require_other(teacher if isinstance(teacher, nn.Module) else teacher.model, model)
        self.num_classes = _require_classes(model, num_classes)
        self.teacher = TeacherLabels(teacher) if isinstance(teacher, nn.Module) else teacher
        self.maps = maps
        self._check_labels()
        self.cls_weight, self.dense_weight, self.smoothing = cls_weight, dense_weight, smoothing
        self.mix_token, self.ground_truth, self.grid = mix_token, ground_truth, grid
        self.features = features if callable(features) else None
        self.grid_recorder: GridRecorder | None = None
        self.aux_head: nn.Linear | None = None
        if not hasattr(model, "forward_token_label") or getattr(model, "aux_head", None) is None:
            has_norm = norm_path(model) is not None and type(model).__name__ not in CLASS_OUTPUT
            host = find_host(model, grid=grid, prefix_tokens=prefix_tokens, layout=layout)
            self.grid_recorder = GridRecorder(
                host,
                "last",
                norm=has_norm if norm is None else norm,
                path=features if isinstance(features, str) else "" if features else None,
                dim=dim,
                prefix_tokens=prefix_tokens,
                layout=layout,
            )
            self.aux_head = nn.Linear(self.grid_recorder.sources[0].dim, self.num_classes)
            init_linear(self.aux_head)
            move_like(self.aux_head, model)
            if self.features is None:
                self.grid_recorder.add_hooks()

    def loss(
        self,
        batch: Batch,
        *,
        generator: torch.Generator | None = None,
        place: Tensor | None = None,
        names: Sequence[str] | None = None,
        crops: Tensor | None = None,
        flips: Tensor | None = None,
        labels: SoftLabels | None = None,
        label_tokens: bool | None = None,
        **draws: Any,
    ) -> dict[str, Tensor]:
        """Compute the loss; in training with mixed images and token labels.

        Args:
            batch: `image`, B, C, H, W, and `target`, class indices, B, or soft labels, B, num_classes; without targets,
                only the output is computed.
            generator: random generator for the box, on the images' device; default: the device's.
            place: position of the box; see `draw`.
            names: names of the images, whose labels are read; see `LabelMaps.read` for this and the next two.
            crops: crops of the images, B, 4.
            flips: whether images were flipped afterwards, B.
            labels: soft labels to use instead of the teacher's.
            label_tokens: whether to train on tokens; default: in training. Otherwise the loss is cross-entropy.

        Returns:
            "output", the logits, and with targets "loss", "classification" and, in training, "tokens", the two terms.
        """
        self.refuse_draws(draws)
        images, targets = batch["image"], batch.get("target")
        if targets is None or not (self.training if label_tokens is None else label_tokens):
            return self.score(self.model(images), targets)
        if self.mix_token and place is None:
            place = draw_place(device=images.device, generator=generator)
        output, grid = self.run(images, place if self.mix_token else None)
        truth = self._smooth_truth(targets, upcast(output.logits).dtype)
        if labels is None and self.maps is not None and "label_index" in batch:
            index, value = batch["label_index"], batch["label_value"]
            labels = self.maps.align(index, value, grid, boxes=batch["label_box"], flips=batch["label_flip"])
        if labels is None:
            labels = self._find_labels(images, grid, names, crops, flips)
        label, dense = self._smooth(labels, truth, grid)
        classification, tokens = token_label_terms(
            output, label=label, dense=dense, truth=truth if self.ground_truth else None, weight=self.class_weights
        )
        loss = self.cls_weight * classification + self.dense_weight * tokens
        result = {"loss": loss, "output": output.logits}
        return result | {"classification": classification.detach(), "tokens": tokens.detach()}

    def run(self, images: Tensor, place: Tensor | None) -> tuple[TokenLabelOutput, tuple[int, int]]:
        """Run the model on images, mixed by a box if given; return logits, token logits and their grid."""
        size = (images.shape[-2], images.shape[-1])
        if self.grid_recorder is None:
            model: Any = self.model
            output = model.forward_token_label(images, box=NO_BOX if place is None else place)
            return output, _own_grid(model, size, output.tokens.shape[1])
        assert self.aux_head is not None
        box = NO_BOX
        if place is not None:
            box, cell = self._place(place, size)
            images = swap_box(images, box.scaled(*cell))
        features: Tensor | None
        if self.features is not None:
            answer, features = self.features(self.model, images)
        else:
            with self.grid_recorder.record() as recorded:
                answer = self.model(images)
            features = recorded[0]
        found = self.grid_recorder.read(0, features, size)
        patch_tokens = found.tokens[:, found.skip :].to(self.aux_head.weight.dtype)
        tokens = self.aux_head(patch_tokens).mT.unflatten(2, found.grid)  # B, classes, H, W
        tokens = swap_box(tokens, box).flatten(2).mT
        return TokenLabelOutput(read_logits(answer), tokens, box), found.grid

    def draw(
        self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw the box of a step on the device; compiled tasks cannot take a generator."""
        return {"place": draw_place(device=device, generator=generator)} if self.mix_token else {}

    def read_along(self, encode: Encoder) -> Encoder:
        """Add stored labels to training samples."""
        return encode if self.maps is None else LabelEncoder(encode, self.maps)

    def learns_from(self) -> dict[str, str]:
        """Return the fingerprint of the teacher or the label maps."""
        return super().learns_from() if self.maps is None else {"the label maps": self.maps.fingerprint()}

    @property
    def learns_targets(self) -> bool:
        """Whether the data's labels are used, not only the teacher's."""
        return self.ground_truth or (self.teacher is None and self.maps is None)

    def weight_of(self, batch: Batch) -> Tensor | None:
        """Return None: class weights are applied within soft labels."""
        return None

    def release(self) -> None:
        """Remove the hooks from the model; its tokens cannot be read any more."""
        if self.grid_recorder is not None:
            self.grid_recorder.release()

    def _place(self, place: Tensor, size: tuple[int, int]) -> tuple[TokenBox, tuple[int, int]]:
        """Return the box on the token grid, and a token's height and width in pixels."""
        assert self.grid_recorder is not None
        stride = self.grid_recorder.sources[0].stride
        if self.grid is not None:
            cell = (size[0] // self.grid[0], size[1] // self.grid[1])
        elif stride is not None:
            cell = (stride, stride)
        else:
            raise HostError(
                f"{self.grid_recorder.host.name} does not report the stride of its tokens, which mixing needs; pass "
                "grid=(rows, columns) of its tokens, or mix_token=False"
            )
        # Models that pad have one more row or column, which the box does not cover.
        return place_box(place, (max(size[0] // cell[0], 1), max(size[1] // cell[1], 1))), cell

    def _find_labels(
        self,
        images: Tensor,
        grid: tuple[int, int],
        names: Sequence[str] | None,
        crops: Tensor | None,
        flips: Tensor | None,
    ) -> SoftLabels | None:
        if self.maps is None:
            if names is not None or crops is not None or flips is not None:
                raise TypeError("names, crops and flips were given, but the task has no maps= to look them up in")
            return None if self.teacher is None else self.teacher(images, grid)
        if names is None:
            raise TypeError("this task looks labels up by name; give names= of the images, or labels= already read")
        return self.maps.read(names, grid, crops=crops, flips=flips, device=images.device)

    def _smooth(self, labels: SoftLabels | None, truth: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return smoothed labels of images, B, classes, and tokens, B, L, classes."""
        if labels is None:
            return truth, truth[:, None].expand(-1, grid[0] * grid[1], -1)
        whole, dense = labels
        Teacher.check_classes(whole.shape[1], self.num_classes)
        dense = resample(upcast(dense), grid).flatten(2).mT
        off = self.smoothing / self.num_classes
        on = 1 - self.smoothing + off
        return upcast(whole).to(truth.dtype) * on + off, dense.to(truth.dtype) * on + off

    def _smooth_truth(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Return targets as smoothed soft labels, B, classes."""
        if not targets.is_floating_point():
            targets = F.one_hot(targets, self.num_classes)
        elif targets.ndim != 2 or targets.shape[1] != self.num_classes:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)} were given as probabilities of {self.num_classes} classes; "
                f"give shape B, {self.num_classes}, or class indices as integers"
            )
        return targets.to(dtype) * (1 - self.smoothing) + self.smoothing / self.num_classes

    def _check_labels(self) -> None:
        if self.teacher is not None:
            self.teacher.join(self.model, self.num_classes)
        if self.maps is not None and self.maps.num_classes != self.num_classes:
            raise ValueError(
                f"the label maps have {self.maps.num_classes} classes, the model has {self.num_classes}; make them "
                "with a teacher that has the model's classes"
            )


def _own_grid(model: Any, size: tuple[int, int], count: int) -> tuple[int, int]:
    """Return the grid of a model's own token logits, inferred from their number and the image size."""
    stride = model.feature_info[-1]["reduction"]
    up = (-(-size[0] // stride), -(-size[1] // stride))
    return up if up[0] * up[1] == count else (max(size[0] // stride, 1), max(size[1] // stride, 1))


def _require_classes(model: nn.Module, given: int | None) -> int:
    known = count_classes(model)
    if given is not None and known is not None and given != known:
        raise ValueError(f"num_classes={given} was given; the model has {known}")
    if (count := given or known) is None:
        raise ValueError(f"{type(model).__name__} does not report its number of classes; pass num_classes=")
    return count


@dataclass(frozen=True)
class LabelEncoder:
    """Adds stored labels, and the crop's position in the image, to samples."""

    encode: Encoder
    maps: LabelMaps

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors."""
        found = self.encode(sample, word)
        framing: Any = getattr(self.encode, "framing", None)
        height, width = sample.inputs["image"].shape[:2]
        left, top, right, bottom = framing.box(height, width, word)
        index, value = self.maps.best(sample.name)
        box = torch.tensor([left / width, top / height, right / width, bottom / height])
        return {**found, "label_index": index.int(), "label_value": value.half(), "label_box": box}

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Return samples as a batch."""
        return self.encode.collate(samples)
