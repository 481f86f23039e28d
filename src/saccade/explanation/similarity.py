"""The view of how alike a model's layers, or those of two models, represent pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..report import heat_map
from .cka import ADVISED, FEWEST, Estimator, Similarity, cka
from .view import Figure, View

TITLE = "Which layers represent pictures alike"
ABOUT = (
    "Centred kernel alignment (CKA) of two layers is 1 where the pictures that are alike for one are alike for the "
    "other, and 0 where they have nothing in common; turning or scaling a layer's features does not change it. Blocks "
    "of dark cells are stages in which little changes."
)


def cka_view(
    model: nn.Module,
    samples: Tensor,
    count: int,
    *,
    other: nn.Module | None = None,
    other_samples: Tensor | None = None,
    names: tuple[str, str] = ("this model", "the other model"),
    layers: Sequence[str] | None = None,
    batch_size: int | None = None,
    estimator: Estimator = "unbiased",
) -> list[View]:
    """Return the similarity of all pairs of layers, the same for every picture.

    Args:
        model: any.
        samples: pictures to compare layers by, as the model takes them, N, C, H, W.
        count: how many pictures the page is about.
        other: a second model, whose layers are compared with those of the first.
        other_samples: the same pictures as the second model takes them, if otherwise.
        names: of both models.
        layers: see `cka`.
        batch_size: see `cka`.
        estimator: see `cka`.
    """
    if len(samples) < FEWEST:
        absent = (
            f"CKA compares how a layer tells many pictures apart; it was given {len(samples)}. The unbiased estimate "
            f"needs at least {FEWEST} and is of use from {ADVISED} on: give more, or a set by --data (data= in Python)."
        )
        return [View("cka", TITLE, ABOUT, absent=absent) for _ in range(count)]
    shared: dict[str, Any] = {"batch_size": batch_size, "layers": layers, "estimator": estimator}
    found = [(names[0], names[0], cka(model, samples, **shared))]
    if not np.isfinite(found[0][2].values).any():
        absent = "The pictures given are all alike to every layer, so that there is nothing to compare."
        return [View("cka", TITLE, ABOUT, absent=absent) for _ in range(count)]
    if other is not None:
        shared["layers"] = None
        found.append((*names, cka(model, samples, other=other, other_images=other_samples, **shared)))
    figures = [_figure(place, *entry, estimator=estimator) for place, entry in enumerate(found)]
    return [View("cka", TITLE, ABOUT, figures=figures) for _ in range(count)]


def _figure(place: int, one: str, other: str, found: Similarity, *, estimator: Estimator) -> Figure:
    values = np.clip(found.values, 0, 1)
    error = "" if found.errors is None else f" Standard errors are at most {np.nanmax(found.errors):.2g}."
    few = " These are few; take the map as a sketch." if found.pictures < ADVISED else ""
    left = f" Left out, since they fold pictures: {', '.join(found.left_out)}." if found.left_out else ""
    whose = f"the layers of {one}" if one == other else f"the layers of {one} (rows) and of {other} (columns)"
    how = f"by {found.pictures} pictures in {found.batches} batches, {estimator} estimate"
    caption = f"CKA between {whose}, {how}.{error}{few}{left}"
    chart = heat_map(
        values,
        rows=brief_names(found.rows),
        columns=brief_names(found.columns),
        title=f"CKA of {one}, in percent" if one == other else f"CKA of {one} and {other}, in percent",
        row_label=one,
        column_label=other,
        texts=[[f"{100 * value:.0f}" if np.isfinite(value) else "" for value in row] for row in values],
        tips=[
            [f"{row} and {column}: {found.values[i, j]:.3f}" for j, column in enumerate(found.columns)]
            for i, row in enumerate(found.rows)
        ],
        alternative=_alternative(found),
    )
    numbers = {
        "rows": list(found.rows),
        "columns": list(found.columns),
        "values": _finite(found.values),
        "errors": None if found.errors is None else _finite(found.errors),
        "pictures": found.pictures,
        "batches": found.batches,
        "estimator": estimator,
    }
    return Figure(f"cka-{place}", caption, chart=chart, numbers=numbers)


def brief_names(names: Sequence[str]) -> list[str]:
    """Leave out of layers' paths the words that all of them have: stages.0.blocks.1 becomes 0.1."""
    parts = [name.split(".") for name in names]
    shared = set.intersection(*(set(path) for path in parts))
    brief = [".".join(word for word in path if word.isdigit() or word not in shared) for path in parts]
    return brief if len(set(brief)) == len(names) and all(brief) else list(names)


def _alternative(found: Similarity) -> str:
    first, last = found.values[0, 0], found.values[0, -1]
    return f"First layers {first:.2f}, first and last layer {last:.2f}, mean {np.nanmean(found.values):.2f}."


def _finite(values: np.ndarray) -> list[list[float | None]]:
    return [[float(x) if np.isfinite(x) else None for x in row] for row in values]
