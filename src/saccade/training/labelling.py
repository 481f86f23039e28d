"""A teacher's labels of every place of every training image, written once for token labelling."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..building.build import open_teacher
from ..building.pretrained import match_classes
from ..data.framing import Framing
from ..data.image import BadSample
from ..data.source import Stream
from ..settings import ConfigError, DataConfig
from ..tasks import LabelMaps, TeacherLabels, make_label_maps
from ..tasks.auxiliary.teacher import Values
from ..tasks.opening import open_samples


def write_labels(
    data: str,
    *,
    teacher: str,
    out: str | Path,
    val: str | None = None,
    img_size: int | None = None,
    top: int = 5,
    values: Values = "probabilities",
    batch_size: int = 32,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[LabelMaps, list[BadSample]]:
    """Ask a teacher about the whole of every training image; `train --plugin token_label:maps=OUT` reads the answers.

    Args:
        data: as for `train`.
        teacher: a run, its weights, `timm:NAME` or `timm:NAME@FILE`.
        out: folder to make.
        val: validation samples, as for `train`: where there are none, some are held out and get no labels.
        img_size: side that images are brought to, whatever their shape; the teacher's own if None.
        top: classes to keep of each place.
        values: what is kept, "probabilities" or, as published, "logits".
        batch_size: images the teacher is asked about at once.
        device: where it is asked.
        progress: is told how many images of how many are done.

    Returns:
        What reads the labels, and the images that could not be read.
    """
    if top < 1 or batch_size < 1 or (img_size is not None and img_size < 1):
        raise ConfigError(
            f"top={top}, batch_size={batch_size}, img_size={img_size} were given; each must be at least 1"
        )
    choice, samples = open_samples(None, DataConfig(path=data, val=val))
    if choice.kind.name != "classify":
        raise ConfigError(
            f"{data} is a dataset for the task {choice.kind.name}; label maps need samples with one class each"
        )
    source = samples.train.indexed() if isinstance(samples.train, Stream) else samples.train
    model, spec, known = open_teacher(teacher)
    if spec.task != choice.kind.name:
        raise ConfigError(
            f"the teacher {teacher} was trained for the task {spec.task}, which has no classes; give a teacher "
            "trained with --task classify"
        )
    zero, one = [0.0] * spec.in_chans, [1.0] * spec.in_chans
    asked = TeacherLabels(
        model.to(device),
        values=values,
        images_norm=(zero, one),
        teacher_norm=(spec.mean, spec.std),
        classes=match_classes(source.outputs, known, teacher=teacher),
    )
    asked.apply(lambda tensor: tensor.to(device))
    framing = Framing(img_size or spec.img_size, channels=spec.in_chans)
    bad: list[BadSample] = []

    def named_images() -> Iterator[tuple[str, Tensor]]:
        for index in range(len(source)):
            if progress is not None:
                progress(index, len(source))
            try:
                pixels = source.read(index)
            except BadSample as error:
                bad.append(error)
                continue
            image = framing.image(pixels, (0, 0, pixels.shape[1], pixels.shape[0]))
            yield source.name(index), image.to(torch.float32) / 255

    maps = make_label_maps(out, asked, named_images(), batch_size=batch_size, top=top, classes=source.outputs)
    return maps, bad
