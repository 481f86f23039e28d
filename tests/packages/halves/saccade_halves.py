"""A task of another package, with reader, plug-ins and view: how bright are both halves of an image?"""

import numpy as np
import torch
from timm.layers import LayerScale

from saccade.data.source import ArraySource, Splits
from saccade.data.targets import Targets
from saccade.explanation.request import ViewKind
from saccade.explanation.view import Figure, View
from saccade.tasks import Answer, Metrics, MetricSpec, Presenter, Task
from saccade.tasks.auxiliary.around import Around


class HalfTargets(Targets):
    """Brightness of both halves, N, 2, from 0 to 1."""

    task = "halves"


class FiveReader:
    """`halves:five`: five images and their halves."""

    rank = 0

    def matches(self, spec, path):
        return spec == "halves:five"

    def open(self, spec, path, options):
        rows = np.random.default_rng(0).uniform(0, 1, (5, 2)).astype(np.float32)
        images = np.kron((255 * rows).astype(np.uint8)[:, None, :, None], np.ones((1, 16, 8, 3), np.uint8))
        source = ArraySource(images, HalfTargets(rows, ("left", "right")), prefix="five")
        return Splits(source, source, ("five images of two halves",))


def relative_error(records):
    """Return the sum of errors over the sum of truths: a ratio, no mean over samples."""
    return float(records[:, 0].sum() / records[:, 1].sum())


class HalfMetrics(Metrics):
    primary = "relative"

    @classmethod
    def metric_specs(cls, spec):
        return (
            MetricSpec("loss", "loss", larger_is_better=False),
            MetricSpec("relative", "relative error", larger_is_better=False, statistic=relative_error),
        )

    def measure(self, answers, batch):
        off = (answers["output"] - batch["target"]).abs().sum(1)
        return {"loss": off, "relative": torch.stack([off, batch["target"].sum(1)], dim=1)}


class HalfPresenter(Presenter):
    def describe(self, row, *, top=5):
        values = dict(zip(self.spec.outputs, map(float, row), strict=True))
        rows = tuple((name, f"{value:.2f}", None) for name, value in values.items())
        brighter = max(values, key=values.get)
        return Answer(f"the {brighter} half is brighter", rows, {"answer": brighter, "values": values})


class Halves(Task):
    """A model that tells the brightness of both halves."""

    running, metrics, presenter = ("near",), HalfMetrics, HalfPresenter

    def loss(self, batch, *, generator=None, **draws):
        output = self.ask(batch)
        loss = {"loss": (output - batch["target"]).abs().mean()} if "target" in batch else {}
        return {**loss, "output": output}

    def follow(self, result, batch):
        return (((result["output"] - batch["truth"]).abs() < 0.1).all(1).sum(),)


class Dim(Around):
    """A plug-in of another package: a loss on the size of answers."""

    def __init__(self, task, *, weight: float = 0.1):
        super().__init__(task)
        self.weight = weight

    def loss(self, batch, *, generator=None, **draws):
        result = self.base(batch, generator=generator, **draws)
        if "loss" in result:
            result["loss"] = result["loss"] + self.weight * result["output"].square().mean()
        return result


class ScaleTokens:
    """A plug-in of another package that changes a model."""

    def __init__(self, *, start: float = 1.0):
        self.start = start

    def install(self, host, handle):
        for block in host.blocks:
            scale = LayerScale(block.end.dim, self.start)
            handle.add(host.model.get_submodule(block.path), "scale_tokens", scale)
            handle.listen(block.end, scale)


def mean_view(request):
    flat = [np.full((8, 8, 3), image.mean((0, 1))).astype(np.uint8) for image in request.pixels]
    return [View("mean", "Mean colour", "The mean of all pixels.", [Figure("mean", "colour", pixels=x)]) for x in flat]


MEAN = ViewKind("mean", 95, mean_view)
