"""Views of a GLNet's semantic slots: assignment maps by block, and during training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...layers.cluster import correspondence, kmeans
from ...layers.numerics import upcast
from ...layers.slots import SlotMixer
from ..checkpoints import open_checkpoints
from ..draw import MIN_SIDE, enlarge, heat_colours, heat_overlay, label_overlay, montage, upsample
from ..medoids import assign, choose_medoids
from ..recording import Recorded, record_taps
from ..request import ViewRequest, register_view
from ..view import Figure, View

TITLE = "What the slots represent"
ABOUT = (
    "A block gathers the image into a few slots and lets them exchange information. A slot's map shows the weight of "
    "each place in it, from dark (least) to light yellow (most); every map is scaled to its own range. In the map of "
    "all slots each place has the colour of the slot that it is closest to, so places of one colour are treated as "
    "belonging together. The four single maps are those that represent the others best (k-medoids)."
)
ABSENT = (
    "This model has no semantic slots: no block gathers the image into slots. GLNet models have them, such as "
    "glnet_nano or glnet_stl."
)
SLOTS_SHOWN = 4  # representative slots shown


@dataclass(frozen=True)
class Slots:
    """Slot assignments of one block."""

    layer: str  # path of the block's slot mixer
    weights: (
        np.ndarray
    )  # B, M, H, W; weight of each position in each slot, which sums to 1 over positions (GLMix eq. 3)
    labels: np.ndarray  # B, H, W; nearest slot of each position


def slots_view(
    model: nn.Module, images: Tensor, pixels: Sequence[np.ndarray], *, recorded: Recorded | None = None
) -> list[View]:
    """Return a view for every image with the assignment maps of each block's slots.

    Args:
        model: any model; only those with slots have something to show.
        recorded: outputs of the `slot_taps` for these images; default: the model is run.
    """
    blocks = read_slots(model, images, recorded=recorded)
    if not blocks:
        return [View("slots", TITLE, ABOUT, absent=ABSENT) for _ in pixels]
    views = []
    for index, image in enumerate(pixels):
        figures = [_figure(block, index, depth, image) for depth, block in enumerate(blocks)]
        rows = [{"layer": figure.layer, **figure.numbers} for figure in figures]
        views.append(View("slots", TITLE, ABOUT, figures=figures, numbers={"layers": rows}))
    return views


def slots_over_checkpoints(
    models: Sequence[tuple[str, nn.Module]],
    images: Tensor,
    pixels: Sequence[np.ndarray],
    *,
    layer: str | int | None = None,
    note: str = "",
) -> list[View]:
    """Return a view for every image with the maps of the same slots of one block during training.

    Args:
        models: names such as "step 100" and models with the weights of that step, oldest first.
        layer: number of the block with slots, counted from 1, or the path of it or of its slot mixer; default: the
            middle one, GLNet-STL's fifth.
        note: remark on the checkpoints.
    """
    about = (
        f"{ABOUT} Each row is one stage of training, the latest at the bottom; the four slots are chosen at the "
        f"latest stage and followed from the beginning. {note}"
    ).rstrip()
    key, title = "slots-training", "What the slots represented during training"
    if not models:
        absent = "There are no checkpoints of this run to compare."
        return [View(key, title, about, absent=absent) for _ in pixels]
    stages = [(name, read_slots(model, images, layer=layer, middle=layer is None)) for name, model in models]
    if any(not blocks for _, blocks in stages):
        return [View(key, title, about, absent=ABSENT) for _ in pixels]
    rows = [(name, blocks[0]) for name, blocks in stages]
    return [View(key, title, about, figures=[_over_time(rows, i, image)]) for i, image in enumerate(pixels)]


def slot_taps(model: nn.Module) -> list[nn.Module]:
    """Return the taps of a model's slots."""
    return [tap for mixer in model.modules() if isinstance(mixer, SlotMixer) for tap in (mixer.slots, mixer.features)]


@torch.no_grad()
def read_slots(
    model: nn.Module,
    images: Tensor,
    *,
    layer: str | int | None = None,
    middle: bool = False,
    recorded: Recorded | None = None,
) -> list[Slots]:
    """Return the slot assignments of a model for images, by block; empty if it has no slots.

    Args:
        layer: only the block with this number, counted from 1, or path.
        middle: only the middle block.
        recorded: outputs of the `slot_taps` for these images; default: the model is run.
    """
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, SlotMixer)]
    if layer is not None and found:
        found = [found[_number([path for path, _ in found], layer)]]
    elif middle and found:
        found = [found[(len(found) - 1) // 2]]
    if not found:
        return []
    recorded = record_taps(model, images, slot_taps(model)) if recorded is None else recorded
    return [_read(path, mixer, recorded[mixer.slots], recorded[mixer.features]) for path, mixer in found]


def _number(names: Sequence[str], layer: str | int) -> int:
    """Return the index of a slot mixer among those of a model."""
    if isinstance(layer, int):
        if 1 <= layer <= len(names):
            return layer - 1
    elif inside := [i for i, name in enumerate(names) if f"{name}.".startswith(f"{layer}.")]:
        return inside[0]
    raise ValueError(
        f"layer={layer!r}: the slot mixers of this model are {', '.join(names)}; give a path or a number from 1 to "
        f"{len(names)}"
    )


def _read(path: str, mixer: SlotMixer, slots: Tensor, features: Tensor) -> Slots:
    grid = tuple(features.shape[1:3])
    slots, features = upcast(slots), upcast(features)
    flat = features.flatten(1, 2)
    weights = mixer.assignment(slots, features)  # B, M, N
    if mixer.scale is None:
        labels = kmeans(slots, flat, mixer.kmeans_iterations)[1]
    else:
        # Dispatching weights are a softmax of the same similarities over slots (GLMix eq. 4).
        labels = correspondence(slots, flat, mixer.scale).argmax(dim=1)
    return Slots(path, weights.unflatten(2, grid).cpu().numpy(), labels.unflatten(1, grid).cpu().numpy())


def pick_slots(weights: np.ndarray, count: int = SLOTS_SHOWN) -> tuple[np.ndarray, np.ndarray]:
    """Choose representative slots by k-medoids.

    Args:
        weights: M, H, W; the distance of two maps is their total variation distance: 0 for equal, 1 for disjoint maps.
        count: number of slots; fewer if there are fewer.

    Returns:
        Their numbers, in order, and for each of the M slots the index of its representative.
    """
    maps = weights.reshape(len(weights), -1).astype(np.float64)
    distances = np.stack([np.abs(maps - one).sum(axis=1) for one in maps]) / 2
    chosen = choose_medoids(distances, min(count, len(maps)))
    return chosen, assign(distances, chosen)


def _figure(block: Slots, index: int, depth: int, image: np.ndarray) -> Figure:
    weights, labels = block.weights[index], block.labels[index]
    chosen, nearest = pick_slots(weights)
    image = enlarge(image)
    captions = ["image", f"{len(weights)} slots, one colour each", "the map of every slot"]
    captions += [f"slot {slot}" for slot in chosen]
    sizes = np.bincount(nearest, minlength=len(chosen))
    numbers = {"grid": list(labels.shape), "slots": len(weights), **_describe(block, index, chosen, sizes)}
    text = ", ".join(f"{slot} (for {size})" for slot, size in zip(chosen, sizes, strict=True))
    caption = (
        f"Block {depth + 1} ({block.layer.removesuffix('.mixer.global_branch')}): {numbers['slots_in_use']} of "
        f"{len(weights)} slots are the closest one of some place. Slots shown singly, and the number of slots that "
        f"each represents: {text}. A slot draws on {numbers['focus']:.0%} of the places on average (100 %: on all "
        "equally)."
    )
    pixels = montage([image, *_tiles(block, index, image, chosen)], 4, captions=captions)
    return Figure(f"slots-{depth}", caption, pixels=pixels, numbers=numbers, layer=block.layer, depth=depth)


def _over_time(rows: Sequence[tuple[str, Slots]], index: int, image: np.ndarray) -> Figure:
    chosen, nearest = pick_slots(rows[-1][1].weights[index])
    sizes = np.bincount(nearest, minlength=len(chosen))
    image = enlarge(image)
    tiles, captions, numbers = [], [], []
    for name, block in rows:
        tiles += _tiles(block, index, image, chosen)
        captions += [f"{name}: all slots", f"{name}: every slot", *(f"{name}: slot {slot}" for slot in chosen)]
        numbers.append({"checkpoint": name, **_describe(block, index, chosen, sizes)})
    layer = rows[-1][1].layer
    caption = (
        f"The slots of {layer} at {', '.join(name for name, _ in rows)}. Share of the places that a slot draws on: "
        f"{', '.join(format(row['focus'], '.0%') for row in numbers)}."
    )
    pixels = montage(tiles, 2 + len(chosen), captions=captions)
    return Figure("slots-training", caption, pixels=pixels, numbers={"checkpoints": numbers}, layer=layer)


def draw_all(weights: np.ndarray, *, size: int = MIN_SIDE) -> np.ndarray:
    """Draw the maps of all slots, M, H, W, as tiles in about a square of `size` pixels."""
    columns = int(np.ceil(np.sqrt(len(weights))))
    height = max(size // columns - 1, 1)
    width = max(round(height * weights.shape[2] / weights.shape[1]), 1)
    page = np.full((-(-len(weights) // columns) * (height + 1), columns * (width + 1), 3), 255, dtype=np.uint8)
    for index, one in enumerate(weights):
        row, column = divmod(index, columns)
        tile = heat_colours(upsample(_stretch(one), height, width, smooth=False))
        page[row * (height + 1) :, column * (width + 1) :][:height, :width] = tile
    return page


def _tiles(block: Slots, index: int, image: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
    """Return the image coloured by slot, the maps of all slots, and overlays of the chosen ones."""
    weights = block.weights[index]
    some = [heat_overlay(image, _stretch(weights[slot])) for slot in chosen]
    return [label_overlay(image, block.labels[index], len(weights)), draw_all(weights), *some]


def _describe(block: Slots, index: int, chosen: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    weights = block.weights[index]
    return {
        "slots_in_use": len(np.unique(block.labels[index])),
        "representatives": [
            {"slot": int(slot), "stands_for": int(size), "focus": _spread(weights[slot])}
            for slot, size in zip(chosen, sizes, strict=True)
        ],
        "focus": float(np.mean([_spread(one) for one in weights])),
    }


def _spread(weights: np.ndarray) -> float:
    """Return the effective share of positions: exp(entropy) / number of positions."""
    shares = weights.astype(np.float64).ravel()
    shares = shares[shares > 0] / shares.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()) / weights.size)


def _stretch(weights: np.ndarray) -> np.ndarray:
    low, high = weights.min(), weights.max()
    return (weights - low) / (high - low) if high > low else np.zeros_like(weights)


@register_view("slots", rank=60, taps=slot_taps)
def _slots(request: ViewRequest) -> list[View]:
    assert request.images is not None
    return slots_view(request.model, request.images, request.pixels, recorded=request.recorded)


@register_view("slots-training", rank=70, needs_run=True)
def _slots_training(request: ViewRequest) -> list[View]:
    assert request.images is not None
    if "stages" not in request.shared:
        request.shared["stages"] = _stages(request)
    models, note = request.shared["stages"]
    return slots_over_checkpoints(models, request.images, request.pixels, layer=request.options.block, note=note)


def _stages(request: ViewRequest) -> tuple[list[tuple[str, nn.Module]], str]:
    """Return a run's models during training and a sentence on them; only the model itself for other targets."""
    loaded = request.loaded
    assert loaded is not None
    alone = [("final weights", loaded.model)]
    if not slot_taps(loaded.model):
        return alone, ""
    if loaded.folder is None:
        return alone, "The model does not belong to a run, so only its current weights are shown."
    models, note = open_checkpoints(loaded.folder, epochs=request.options.epochs)
    return [(name, one.to(loaded.device)) for name, one in models], note
