"""Frozen teacher networks: logits and dense labels."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from ...layers.numerics import upcast
from ...plugins.tokens import CLASS_OUTPUT, Host, HostError, find_host, split_tokens
from ...settings.values import require_choice
from ..classification.task import Classify, read_logits

Norm = tuple[Sequence[float], Sequence[float]]
Values = Literal["probabilities", "logits"]
Dense = Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]]


class Teacher:
    """A frozen model.

    It is not a module, so that it is not part of a task's parameters and state; `WithTeacher` moves it
    along. The model is put into evaluation mode and frozen, in place.

    Args:
        model: maps images to logits, or to an object with `logits`.
        images_norm: mean and standard deviation of the images' normalisation; None: no conversion.
        teacher_norm: the teacher's normalisation; default: from its `pretrained_cfg`.
        size: height and width to resize images to; None: unchanged.
        classes: the teacher's class for each of the student's, if they differ.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        images_norm: Norm | None = None,
        teacher_norm: Norm | None = None,
        size: int | tuple[int, int] | None = None,
        classes: Sequence[int] | None = None,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.size = (size, size) if isinstance(size, int) else size
        self.rescale = _rescale(model, images_norm, teacher_norm)  # 2, C, 1, 1
        self.classes = None if classes is None else torch.tensor(classes)
        count = count_classes(model)
        if classes is not None and count is not None and not all(0 <= label < count for label in classes):
            raise ValueError(
                f"classes= contains the teacher class {max(classes, key=abs)}; the teacher's classes are 0 to "
                f"{count - 1}"
            )
        self.num_classes = count if classes is None else len(classes)

    @torch.no_grad()
    def ask(self, images: Tensor) -> Tensor:
        """Return logits, B, classes, for the student's images."""
        return self.choose(read_logits(self.model(self.prepare(images))))

    def prepare(self, images: Tensor) -> Tensor:
        """Convert the student's images to the teacher's size and normalisation."""
        if self.rescale is not None:
            images = images * self.rescale[0] + self.rescale[1]
        if self.size is not None and self.size != (images.shape[-2], images.shape[-1]):
            images = F.interpolate(upcast(images), self.size, mode="bicubic", antialias=True)
        like = next(self.model.parameters(), None)
        return images if like is None else images.to(like.dtype)

    def choose(self, logits: Tensor) -> Tensor:
        """Select the logits, B, classes, ..., of the student's classes."""
        return logits if self.classes is None else logits.index_select(1, self.classes)

    def join(self, student: nn.Module, num_classes: int | None) -> None:
        """Move to the student's device (unless it is a meta device), and check its classes."""
        if num_classes is not None and self.num_classes is not None:
            self.check_classes(self.num_classes, num_classes)
        like = next(student.parameters(), None)
        if like is not None and like.device.type != "meta":
            device = like.device
            self.apply(lambda tensor: tensor.to(device))

    @staticmethod
    def check_classes(given: int, wanted: int) -> None:
        """Refuse a number of classes that differs from the student's."""
        if given != wanted:
            raise ValueError(
                f"the teacher has {given} classes, the model {wanted}; give a teacher with the same classes, or "
                "classes= with the teacher's class for each of the model's"
            )

    def fingerprint(self) -> str:
        """Return the fingerprint of the teacher's weights and options."""
        found = hashlib.sha256(repr((type(self.model).__name__, self.size, self.num_classes)).encode())
        tensors = {"rescale": self.rescale, "classes": self.classes, **self.model.state_dict()}
        for name, tensor in tensors.items():
            if tensor is not None:
                found.update(name.encode())
                found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return found.hexdigest()

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move or convert every tensor, like `Module._apply`."""
        self.model._apply(fn)
        self.rescale = None if self.rescale is None else fn(self.rescale)
        self.classes = None if self.classes is None else fn(self.classes)


class SoftLabels(NamedTuple):
    """Distributions over classes."""

    whole: Tensor  # B, classes: for each image
    dense: Tensor  # B, classes, H, W: for each position


class TeacherLabels(Teacher):
    """A teacher with dense labels: its classifier applied to every position of its last feature map.

    Args:
        model: a timm model; any other with `dense`.
        values: what is resampled to other grids: "probabilities", or "logits" before the softmax, as published.
        dense: function of model and images that returns logits, B, classes, and every place's, B, classes, H, W, for
            a model that has no `forward_features` and `forward_head`, or whose head needs more than one position.
        options: of `Teacher`.
    """

    def __init__(
        self, model: nn.Module, *, values: Values = "probabilities", dense: Dense | None = None, **options: Any
    ) -> None:
        super().__init__(model, **options)
        require_choice("values", values, ("probabilities", "logits"))
        self.values, self.dense = values, dense
        self.host = find_host(model) if dense is None else None
        if self.host is not None:
            _require_positions(self.host)

    @torch.no_grad()
    def __call__(self, images: Tensor, grid: tuple[int, int] | None = None) -> SoftLabels:
        """Return labels of the student's images, on the given grid or the teacher's own."""
        whole, dense = self.logits(images)
        if self.values == "logits":
            return SoftLabels(whole.softmax(1), resample(dense, grid).softmax(1))
        return SoftLabels(whole.softmax(1), resample(dense.softmax(1), grid))

    @torch.no_grad()
    def logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of each image, B, classes, and position, B, classes, H, W, in at least float32."""
        images = self.prepare(images)
        if self.host is None:
            assert self.dense is not None
            whole, dense = self.dense(self.model, images)
        else:
            whole, dense = _classify_positions(self.host, images)
        return upcast(self.choose(whole)), upcast(self.choose(dense))


class WithTeacher(Classify):
    """A classifier with a teacher, which is moved with it but neither trained nor saved."""

    teacher: Teacher | None

    def learns_from(self) -> dict[str, str]:
        """Return the fingerprint of the teacher."""
        return {} if self.teacher is None else {"the teacher": self.teacher.fingerprint()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "WithTeacher":
        super()._apply(fn, recurse)
        if self.teacher is not None:
            self.teacher.apply(fn)
        return self


def require_other(teacher: nn.Module, student: nn.Module) -> None:
    """Refuse a teacher that shares modules with the student."""
    if {id(p) for p in student.parameters()} & {id(p) for p in teacher.parameters()}:
        raise ValueError(
            "the teacher shares parameters with the model, so freezing the teacher would freeze the model; give a "
            "deepcopy of it"
        )


def resample(maps: Tensor, grid: tuple[int, int] | None, boxes: Tensor | None = None) -> Tensor:
    """Resample a map, B, K, H, W, to a grid by RoIAlign.

    Args:
        maps: maps in at least float32.
        grid: rows and columns; None: the map's own.
        boxes: left, top, right, bottom of the region that the grid covers, B, 4, in cells of the map; None: the whole
            map.
    """
    own = (maps.shape[2], maps.shape[3])
    grid = own if grid is None else grid
    if boxes is None:
        if grid == own:
            return maps
        boxes = maps.new_tensor([0, 0, own[1], own[0]]).expand(maps.shape[0], 4)
    numbered = torch.cat([torch.arange(maps.shape[0], device=maps.device, dtype=maps.dtype)[:, None], boxes], 1)
    return roi_align(maps, numbered, grid, aligned=True)


def count_classes(model: nn.Module) -> int | None:
    """Return a model's number of classes, if known."""
    count = getattr(model, "num_classes", None)
    if count is None:
        count = getattr(getattr(model, "config", None), "num_labels", None)
    return count if isinstance(count, int) and count > 0 else None


def _classify_positions(host: Host, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return a timm model's logits, and those of its head on each single position."""
    model: Any = host.model
    features = model.forward_features(images)
    whole = read_logits(model.forward_head(features))
    if getattr(model, "aux_head", None) is not None and hasattr(model, "classify_tokens"):
        return whole, model.classify_tokens(features)  # trained with token labels
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        raise HostError(
            f"{host.name} has no grid of final features; pass dense=, a function that classifies every position"
        )
    layout = "NLC" if features.ndim == 3 else "NHWC" if host.layout == "NHWC" else "NCHW"
    size, prefix = (images.shape[-2], images.shape[-1]), host.output_prefix
    tokens = split_tokens(features, layout=layout, prefix_tokens=prefix, image_size=size)  # type: ignore[arg-type]
    assert tokens.grid is not None
    cells = tokens.words.flatten(0, 1)  # B * L, C
    if layout == "NLC":
        cells = cells[:, None].expand(-1, prefix + 1, -1)  # the head may read any token
    else:
        cells = cells[:, :, None, None] if layout == "NCHW" else cells[:, None, None]
    dense = model.forward_head(cells)
    return whole, dense.unflatten(0, (images.shape[0], *tokens.grid)).permute(0, 3, 1, 2)


def _require_positions(host: Host) -> None:
    missing = [name for name in ("forward_features", "forward_head") if not hasattr(host.model, name)]
    if missing or host.text or type(host.model).__name__ in CLASS_OUTPUT:
        why = f"has no {' and no '.join(missing)}" if missing else "gives no grid of final features"
        raise HostError(
            f"{host.name} {why}, so its classifier cannot be applied at every position; pass dense=, a function of "
            "the model and the images that returns logits of the image, B, classes, and of every position, B, "
            "classes, H, W"
        )


def _rescale(model: nn.Module, images_norm: Norm | None, teacher_norm: Norm | None) -> Tensor | None:
    """Return scale and shift from the student's normalisation to the teacher's."""
    if images_norm is None:
        if teacher_norm is not None:
            raise ValueError("teacher_norm= was given without images_norm=; also give the mean and std of the images")
        return None
    if teacher_norm is None:
        cfg = getattr(model, "pretrained_cfg", None) or {}
        if not cfg.get("mean") or not cfg.get("std"):
            raise ValueError(
                f"{type(model).__name__} does not record the mean and std that it was trained with; pass "
                "teacher_norm=(mean, std)"
            )
        teacher_norm = (cfg["mean"], cfg["std"])
    (mean, std), (own_mean, own_std) = (
        (torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        for a, b in (images_norm, teacher_norm)
    )
    rescale = torch.stack([std / own_std, (mean - own_mean) / own_std])
    return rescale.to(torch.get_default_dtype()).reshape(2, -1, 1, 1)
