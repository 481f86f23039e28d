"""Views of attention: density by layer, and maps."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ...report import Html, fold, grid, line_chart, table
from ..capture import Captured
from ..draw import enlarge, heat_overlay, montage, upsample
from ..maps import AttentionMap, spread
from ..request import Heads, ViewRequest, register_view
from ..view import Figure, View

MASS = 0.6  # share of the weight in a thresholded map
KINDS = {"tokens": "attention between all tokens", "windows": "attention in windows", "slots": "attention of slots"}
DENSITY = (
    "How evenly attention is spread. The entropy of a row of attention is 0 if a token attends to a single other, "
    "and log N, the bound, if it attends to all N equally; a mean near the bound is dense attention, and the 15th "
    "percentile shows how sparse the sparser rows are. The distance is how far a token attends on average, in sides "
    "of the image (for windows: of the window), horizontal plus vertical. The Jacobian's norm is how strongly the "
    "softmax reacts to a small change of its input: most, 1 - 1/N, at uniform attention."
)
MAPS = (
    f"Where attention goes, averaged over heads. Only the places that together hold {MASS:.0%} of the weight are "
    "coloured, the strongest yellow; the fewer they are, the sparser the attention. Where there is a class token, it "
    "is its attention; elsewhere it is what a place receives from all others on average."
)


def density_view(captured: Captured, count: int) -> list[View]:
    """Return a view for every image with entropy, distance and Jacobian norm of each layer's attention."""
    title = "How dense attention is"
    if not captured.attention:
        return [View("density", title, DENSITY, absent=_no_attention(captured)) for _ in range(count)]
    views = []
    for index in range(count):
        rows = [describe(layer, index) for layer in captured.attention]
        figures = [
            Figure(f"density-{kind}", _caption(kind, chosen), chart=_charts(kind, chosen), numbers={"layers": chosen})
            for kind in KINDS
            if (chosen := [row for row in rows if row["kind"] == kind])
        ]
        numbers = {"layers": rows, "not_attention": _others(captured), "unheard": captured.unheard}
        views.append(View("density", title, DENSITY, figures=figures, numbers=numbers))
    return views


def describe(layer: AttentionMap, index: int) -> dict[str, Any]:
    """Return the measurements of one layer's attention for one image, as JSON values."""
    mean, (low, high) = spread(layer.entropy[index])
    norm, (norm_low, _) = spread(layer.jacobian[index])
    scale = layer.scale
    numbers = {
        "entropy": mean,
        "entropy_15": low,
        "entropy_85": high,
        "entropy_bound": layer.bound,
        "entropy_class_token": None if layer.first is None else spread(layer.entropy[index, ..., 0])[0],
        "distance": None if layer.attended is None else spread(layer.attended[index])[0],
        "distance_paper": None if layer.relative is None else spread(layer.relative[index])[0],
        "jacobian": norm,
        "jacobian_15": norm_low,
        "jacobian_bound": 1 - 1 / layer.keys,
        "jacobian_paper": None if scale is None else scale * norm,
    }
    return {
        "layer": layer.label,
        "depth": layer.depth,
        "kind": layer.grid.kind,
        "windows": layer.windows,
        "heads": layer.heads,
        "queries": layer.queries,
        "keys": layer.keys,
        "computed": "beside a fused kernel" if layer.fused else "by the model",
        "no_distance": layer.grid.trouble,
        **{key: None if value is None or not math.isfinite(value) else value for key, value in numbers.items()},
    }


def attention_view(captured: Captured, pixels: Sequence[np.ndarray], *, heads: Heads = "mean") -> list[View]:
    """Return a view for every image with thresholded attention maps of all layers with a token grid.

    Args:
        pixels: the images, each H, W, 3 uint8.
        heads: "mean" averages over heads; "all" draws each head as well; numbers, counted from 0, select heads.
    """
    title = "What attention looks at"
    drawn = [layer for layer in captured.attention if layer.grid.key_grid is not None and layer.windows == 1]
    if not drawn:
        reason = _no_attention(captured)
        if captured.attention:
            windowed = any(layer.grid.kind == "windows" for layer in captured.attention)
            troubles = sorted({layer.grid.trouble for layer in captured.attention if layer.grid.trouble})
            reason = f"No map can be drawn over the image: {'; '.join(troubles) or 'all attention is inside windows'}."
            if windowed and troubles:
                reason += " Windows are not assembled into one map, since they may be shifted or dilated."
        return [View("attention", title, MAPS, absent=reason) for _ in pixels]
    left_out = len(captured.attention) - len(drawn)
    about = MAPS
    if left_out:
        about += (
            f" {left_out} of {len(captured.attention)} layers attend inside windows or among slots and are not "
            "drawn: their tokens have no fixed position in the whole image."
        )
    return [
        View("attention", title, about, figures=[_map_figure(layer, index, image, heads) for layer in drawn])
        for index, image in enumerate(pixels)
    ]


def threshold(weights: np.ndarray, share: float = MASS) -> tuple[np.ndarray, float]:
    """Keep the strongest cells that together have a share of the weight, scaled to 0..1.

    Args:
        weights: h, w, not negative.

    Returns:
        The map, 0 for dropped cells, and the share of kept cells.
    """
    flat = weights.reshape(-1).astype(np.float64)
    order = np.argsort(-flat, kind="stable")
    total = flat.sum()
    if not total > 0:
        return np.zeros(weights.shape), 0.0
    # The smallest number that reaches the share, with a tolerance for rounding.
    count = min(int(np.searchsorted(np.cumsum(flat[order]), share * total * (1 - 1e-9))) + 1, len(flat))
    kept = np.zeros_like(flat)
    chosen = order[:count]
    low, high = flat[chosen].min(), flat[chosen].max()
    kept[chosen] = 1.0 if high <= low else 0.25 + 0.75 * (flat[chosen] - low) / (high - low)  # kept cells stay visible
    return kept.reshape(weights.shape), count / len(flat)


def _map_figure(layer: AttentionMap, index: int, image: np.ndarray, heads: Heads) -> Figure:
    rows: Tensor = layer.received if layer.first is None else layer.first
    words = rows[index, 0, :, layer.grid.prefix[1] :].nan_to_num()  # heads, places
    assert layer.grid.key_grid is not None
    image = enlarge(image)
    tile, places = _map_tile(words.mean(0), layer, image)
    tiles, captions, by_head = [image, tile], ["image", "mean of the heads"], []
    for head in _chosen(heads, layer):
        tile, share = _map_tile(words[head], layer, image)
        tiles.append(tile)
        captions.append(f"head {head}")
        by_head.append({"head": head, "places": share})
    whose = "received on average" if layer.first is None else "of the class token"
    caption = f"{layer.label}: {places:.0%} of the places hold {MASS:.0%} of the attention {whose}."
    if by_head:
        shares = ", ".join(f"{one['head']} {one['places']:.0%}" for one in by_head)
        caption += f" By head: {shares}."
    numbers = {
        "places": places,
        "kept": MASS,
        "of": "all tokens" if layer.first is None else "class token",
        "grid": list(layer.grid.key_grid),
        "weight_on_grid": float(words.mean(0).sum()),
        "heads": by_head,
    }
    return Figure(
        f"attention-{layer.depth}",
        caption,
        pixels=montage(tiles, 4, captions=captions) if by_head else montage(tiles),
        numbers=numbers,
        layer=layer.label,
        depth=layer.depth,
    )


def _map_tile(words: Tensor, layer: AttentionMap, image: np.ndarray) -> tuple[np.ndarray, float]:
    """Return an image with a thresholded map, and the share of cells in it."""
    assert layer.grid.key_grid is not None
    heat, places = threshold(words.reshape(layer.grid.key_grid).numpy())
    bare = upsample(heat, *image.shape[:2], smooth=False)[..., None] > 0
    return np.where(bare, heat_overlay(image, heat, smooth=False), image // 3), places


def _chosen(heads: Heads, layer: AttentionMap) -> Sequence[int]:
    """Return the heads of a layer that are drawn separately."""
    if isinstance(heads, str):
        if heads not in ("mean", "all"):
            raise ValueError(f"heads={heads!r}: expected 'mean', 'all' or numbers of heads from 0")
        return range(layer.heads) if heads == "all" else ()
    missing = [head for head in heads if not 0 <= head < layer.heads]
    if missing:
        raise ValueError(
            f"heads={list(heads)}: {layer.label} has {layer.heads} heads, numbered from 0; remove "
            f"{', '.join(map(str, missing))}, or choose layers with layers="
        )
    return heads


def _charts(kind: str, rows: Sequence[dict[str, Any]]) -> Html:
    def line(key: str) -> list[tuple[float, float]]:
        return [(row["depth"] + 1, math.nan if row[key] is None else row[key]) for row in rows]

    lines = {"mean": line("entropy"), "15th percentile": line("entropy_15"), "bound, log N": line("entropy_bound")}
    if any(row["entropy_class_token"] is not None for row in rows):
        lines["class token"] = line("entropy_class_token")
    shared: dict[str, Any] = {"x_label": "attention layer", "zero": True}
    charts = [line_chart(lines, title=f"Entropy, {KINDS[kind]}", y_label="nats", **shared)]
    if any(row["distance"] is not None for row in rows):
        side = "window" if kind == "windows" else "image"
        charts.append(
            line_chart({"mean": line("distance")}, title="Attention distance", y_label=f"sides of the {side}", **shared)
        )
    lines = {"mean": line("jacobian"), "15th percentile": line("jacobian_15"), "bound, 1 - 1/N": line("jacobian_bound")}
    charts.append(line_chart(lines, title="Nuclear norm of the softmax's Jacobian", y_label="norm", **shared))
    return Html(grid(*charts) + fold("All numbers", _table(rows)))


def _table(rows: Sequence[dict[str, Any]]) -> Html:
    keys = ("entropy", "entropy_15", "entropy_bound", "distance", "jacobian")
    cells = [
        [
            str(row["depth"] + 1),
            row["layer"],
            f"{row['windows']} x {row['heads']} x {row['queries']} x {row['keys']}",
            *("-" if row[key] is None else f"{row[key]:.3f}" for key in keys),
        ]
        for row in rows
    ]
    header = [
        "",
        "Layer",
        "Windows x heads x queries x keys",
        "Entropy",
        "15th percentile",
        "Bound",
        "Distance",
        "Norm",
    ]
    return table(header, cells, caption="Attention layer by layer", numeric=(3, 4, 5, 6, 7))


def _caption(kind: str, rows: Sequence[dict[str, Any]]) -> str:
    near = np.mean([row["entropy"] / row["entropy_bound"] for row in rows if row["entropy"] and row["entropy_bound"]])
    windows = sorted({row["windows"] for row in rows}, reverse=True)
    text = f" Each map shows one window; an image has {', '.join(map(str, windows))}." * (kind == "windows")
    text += " Slots are clusters of places, so there is no distance between them." * (kind == "slots")
    verb = "layers have" if len(rows) > 1 else "layer has"
    return f"{len(rows)} {verb} {KINDS[kind]}; the mean entropy is {near:.0%} of its bound.{text}"


def _others(captured: Captured) -> list[dict[str, Any]]:
    return [{"layer": other.name, "shape": list(other.shape), "what": other.what} for other in captured.other]


def _no_attention(captured: Captured) -> str:
    """Explain why there is no attention to show."""
    text = "This model computes no attention between tokens."
    kinds = list(dict.fromkeys(other.what for other in captured.other))
    if kinds:
        text += f" It has softmaxes for: {', '.join(kinds)}."
    if captured.unheard:
        names = ", ".join(captured.unheard[:3])
        text += (
            f" {len(captured.unheard)} modules are attention by name ({names}), but compute no softmax of queries "
            "and keys that could be recorded."
        )
    return text


@register_view("attention", rank=20)
def _attention(request: ViewRequest) -> list[View]:
    return attention_view(request.captured, request.pixels, heads=request.options.heads)


@register_view("density", rank=30, reads=("images", "texts"))
def _density(request: ViewRequest) -> list[View]:
    return density_view(request.captured, request.count)
