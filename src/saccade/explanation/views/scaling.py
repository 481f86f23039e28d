"""View of the scaling weights of CB_S, by layer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ...layers.broadcast import Broadcast
from ...layers.numerics import upcast
from ...report import Html, grid, line_chart
from ...report.plain import to_json
from ..request import ViewRequest, register_view
from ..view import Figure, View

QUANTILES = (0.1, 0.9)  # quantiles of the scaling weights, as in the paper's figure 8
SCALING = (
    "Context Broadcasting with learned scales (CB_S) adds the mean token times one weight per channel. A larger mean "
    "indicates that a layer uses more of it; a ratio of the 10 % to the 90 % quantile of the absolute weights near 1 "
    "indicates that all channels use about the same amount."
)


class Scaling(NamedTuple):
    """Statistics of the scaling weights of one CB_S."""

    name: str  # name of the module
    mean: float  # mean of the weights
    low: float  # 10% quantile of their magnitudes
    high: float  # 90% quantile of their magnitudes
    ratio: float  # low / high, 1 if all channels get the same share of the mean; NaN if all weights are zero


def scaling_view(model: nn.Module, count: int) -> list[View]:
    """Return the view of CB_S' scaling weights by depth, the same for every image."""
    title = "How much of the mean each layer uses"
    found = scaling_weights(model)
    if not found:
        absent = "This model has no Context Broadcasting with learned scales; attach ContextBroadcast(scale=True)."
        return [View("scaling", title, SCALING, absent=absent) for _ in range(count)]
    rows = [
        {"layer": row.name, "mean": row.mean, "q10": row.low, "q90": row.high, "ratio": to_json(row.ratio)}
        for row in found
    ]
    layers = "one layer." if len(found) == 1 else f"{len(found)} layers, from the first to the last."
    caption = f"The scaling weights of {layers}"
    figure = Figure("scaling-weights", caption, chart=_scaling_charts(found), numbers={"layers": rows})
    return [View("scaling", title, SCALING, figures=[figure], numbers={"layers": rows}) for _ in range(count)]


def _scaling_charts(found: Sequence[Scaling]) -> Html:
    means = [(place + 1, row.mean) for place, row in enumerate(found)]
    ratios = [(place + 1, row.ratio) for place, row in enumerate(found)]
    shared: dict[str, Any] = {"x_label": "layer with CB_S", "zero": True}
    return grid(
        line_chart({"mean": means}, title="Mean of the scaling weights", y_label="mean", **shared),
        line_chart(
            {"ratio": ratios}, title=("10 % over 90 % quantile of their absolute values"), y_label="ratio", **shared
        ),
    )


def scaling_weights(model: nn.Module) -> list[Scaling]:
    """Return statistics of the weights of every CB_S in a model, in order of depth."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, Broadcast) and module.scale is not None:
            weights = upcast(module.scale.detach()).cpu()
            low, high = torch.quantile(weights.abs(), torch.tensor(QUANTILES, dtype=weights.dtype)).tolist()
            found.append(Scaling(name, weights.mean().item(), low, high, low / high if high else float("nan")))
    return found


@register_view("scaling", rank=40, reads=("images", "texts"))
def _scaling(request: ViewRequest) -> list[View]:
    return scaling_view(request.model, request.count)
