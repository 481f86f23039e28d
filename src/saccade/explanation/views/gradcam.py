"""Grad-CAM: the regions of an image that support a class, for any network with feature maps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...layers.numerics import upcast
from ...layers.second_order import SecondOrder
from ...plugins.tokens import Host, HostError, find_attention, find_host, is_attention, split_tokens
from ...tasks.classification.task import read_logits
from ..draw import enlarge, heat_overlay, montage, scale_heat
from ..outputs import Pooled, choose_targets, is_dense, name_class
from ..recording import PARTS, eval_mode, record_head
from ..request import ViewRequest, register_view
from ..view import Figure, View, shares_of

TITLE = "Where the prediction comes from"
ABOUT = (
    "Grad-CAM: the features at a late layer, weighted by how much the answer would change with each of them. Light "
    "yellow places speak for the class, dark ones do not. Places that speak against it are dark, too."
)
ABOUT_NUMBER = (
    "Grad-CAM: the features at a late layer, weighted by how much the number would change with each of them. Light "
    "yellow places raise it, dark ones do not. Places that lower it are dark, too."
)
NO_FEATURES = (nn.Dropout, nn.Softmax)  # modules whose output may be attention weights B, heads, N, N
TRIED = 8  # maps to try, from the last one backwards


@dataclass(frozen=True)
class FeatureMap:
    """A feature map inside a model, with its autograd graph."""

    layer: str  # name of its module
    tensor: Tensor  # the output
    prefix: int = 0  # number of prefix tokens
    channels_last: bool = False  # for maps with four axes

    def as_map(self, values: Tensor, host: Host, size: tuple[int, int]) -> Tensor:
        """Reshape features or gradients to B, C, H, W; refuse maps without the image's aspect ratio."""
        if values.ndim == 4:
            rows, columns = values.shape[1:3] if self.channels_last else values.shape[2:]
            even = size[1] / size[0]
            if abs(columns - even * rows) > 1 + even:  # strides round each side by less than a cell
                raise HostError(
                    f"{self.layer} has {rows} x {columns} cells, which do not correspond to positions in the image"
                )
        layout: Any = "NLC" if values.ndim == 3 else "NHWC" if self.channels_last else "NCHW"
        fits = host.grid if host.grid and values.shape[1] - self.prefix == host.grid[0] * host.grid[1] else None
        return split_tokens(values, layout=layout, prefix_tokens=self.prefix, grid=fits, image_size=size).as_map()


@dataclass(frozen=True)
class GradCam:
    """Grad-CAM of a batch."""

    layer: str  # layer of the features
    targets: np.ndarray  # B; target class of each image
    heat: dict[str, np.ndarray]  # by part of the logits ("both", "class", "words"), each B, H, W, from 0 to 1
    logits: dict[str, np.ndarray]  # by part, each B; logit of the class
    # by part, each B; largest value before scaling, 0 if nothing supports the class
    peak: dict[str, np.ndarray]


def gradcam_view(
    model: nn.Module,
    images: Tensor,
    pixels: Sequence[np.ndarray],
    *,
    targets: int | Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    numbers: bool = False,
) -> list[View]:
    """Return a Grad-CAM view for every image, for second-order heads also of each part.

    Args:
        model: any classifier or regressor.
        images: model inputs, B, C, H, W.
        pixels: the images, each H, W, 3 uint8.
        targets: target class, one or one for each image; default: the predicted one.
        classes: names of the outputs.
        numbers: whether outputs are numbers; the default target is then the first.
    """
    targets = 0 if numbers and targets is None else targets
    try:
        cams = compute_gradcam(model, images, targets=targets)
    except HostError as error:
        return [View("gradcam", TITLE, ABOUT, absent=f"No Grad-CAM: {error.message}.") for _ in pixels]
    return [_view(cams, index, image, classes, numbers=numbers) for index, image in enumerate(pixels)]


def compute_gradcam(model: nn.Module, images: Tensor, *, targets: int | Sequence[int] | None = None) -> GradCam:
    """Compute Grad-CAM at the last feature map with a gradient.

    If only the class token is used, the last block's patch tokens have no gradient; the input of that block's
    attention is then used. Raises HostError with the reason if there is no such map.
    """
    host = find_host(model)
    if host.text:
        raise HostError(f"{host.name} reads words, so there are no positions in an image")
    size = (images.shape[2], images.shape[3])
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(model):
        with record_maps(host, len(images)) as maps, record_head(model) as call:
            # The images require gradients, so that frozen parameters do not matter.
            answer = model(images.detach().clone().requires_grad_())
        logits = _logits(host, answer)
        chosen = choose_targets(logits, targets)
        parts = {name: part.gather(1, chosen[:, None])[:, 0] for name, part in call.split(logits).items()}
        features_at, gradients = _choose(host, maps, parts, size)
    heat, peak = {}, {}
    features = upcast(features_at.as_map(features_at.tensor.detach(), host, size))
    for name, gradient in gradients.items():
        weights = upcast(gradient).mean((2, 3), keepdim=True)
        cam = (weights * features).sum(1).clamp_min(0).cpu().numpy()  # B, H, W
        peak[name] = cam.max((1, 2))
        heat[name] = np.stack([scale_heat(one) for one in cam])
    scores = {name: parts[name].detach().float().cpu().numpy() for name in gradients}
    return GradCam(features_at.layer, chosen.cpu().numpy(), heat, scores, peak)


def _logits(host: Host, answer: Any) -> Tensor:
    try:
        logits = read_logits(answer)
    except TypeError:
        raise HostError(f"{host.name} returns {type(answer).__name__}, not the logits of classes") from None
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise HostError(f"{host.name} returns {tuple(logits.shape)}, not the logits of classes")
    return logits


def _choose(
    host: Host, maps: Sequence[FeatureMap], parts: dict[str, Tensor], size: tuple[int, int]
) -> tuple[FeatureMap, dict[str, Tensor]]:
    """Return the first map with gradients of all parts of the logits, else with one of the whole."""
    maps = [one for one in maps if one.tensor.requires_grad][:TRIED]
    if not maps:
        raise HostError(f"{host.name} has no feature map: none of its features keep the positions in the image")
    answers = {}
    for name, part in parts.items():
        answers[name] = torch.autograd.grad(
            part.sum(), [one.tensor for one in maps], retain_graph=True, allow_unused=True
        )
    options: list[tuple[FeatureMap, dict[str, Tensor]]] = []
    refused: HostError | None = None
    for index, one in enumerate(maps):
        try:
            grads = {name: one.as_map(g[index], host, size) for name, g in answers.items() if g[index] is not None}
        except HostError as error:
            refused = error
            continue
        grads = {name: gradient for name, gradient in grads.items() if bool((gradient != 0).any())}
        if "both" in grads:
            options.append((one, grads))
    if not options:
        raise refused or HostError(
            f"the output of {host.name} has no gradient at any of its last {len(maps)} feature maps "
            f"({', '.join(one.layer for one in maps)})"
        )
    return max(options, key=lambda option: len(option[1]))  # the first with most parts


def _view(cams: GradCam, index: int, image: np.ndarray, classes: Sequence[str] | None, *, numbers: bool) -> View:
    target = int(cams.targets[index])
    name = name_class(target, classes)
    image = enlarge(image)
    figures = []
    for part in cams.heat:
        logit, peak = float(cams.logits[part][index]), float(cams.peak[part][index])
        caption = f"Places that speak for {name!r} in {PARTS[part]}, whose score for it is {logit:.3g}."
        if numbers:
            caption = f"Places that raise {name!r} in {PARTS[part]}, {_which(target, classes)}."
        if peak == 0:
            caption += " None was found: the weighted features are negative everywhere."
        drawn = montage([image, heat_overlay(image, cams.heat[part][index])])
        key = "gradcam" if part == "both" else f"gradcam-{part}"
        measured = {"score": logit, "peak": peak, "grid": list(cams.heat[part].shape[1:])}
        figures.append(Figure(key, caption, pixels=drawn, numbers=measured, layer=cams.layer))
    about = f"{ABOUT_NUMBER if numbers else ABOUT} Read at: {cams.layer}."
    whole = {"target": target, "class": name, "layer": cams.layer}
    return View("gradcam", TITLE, about, figures=figures, numbers=whole)


def _which(target: int, classes: Sequence[str] | None) -> str:
    """Describe the target output."""
    if classes is None or len(classes) == 1:
        return "the number that the model predicts"
    return f"number {target + 1} of the {len(classes)} that the model predicts"


@contextmanager
def record_maps(host: Host, batch: int) -> Iterator[list[FeatureMap]]:
    """Record a model's feature maps; the list is filled after the call, best candidate first.

    With transformer blocks these are the last block's output, the input of its attention, and the output of the block
    before; then every output B, C, H, W with more than one position, last first, except those inside of attention,
    whose axes are heads and tokens, and those before the first block.
    """
    outputs: dict[str, Tensor] = {}  # by path, in order of computation
    inputs: dict[str, Tensor] = {}  # inputs of the last block's attention
    maps: list[FeatureMap] = []
    names = {module: path for path, module in host.model.named_modules()}

    def after(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, Tensor) and output.ndim in (3, 4) and len(output) == batch and output.is_floating_point():
            outputs.pop(names[module], None)
            outputs[names[module]] = output

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(given, Tensor) and given.ndim in (3, 4) and len(given) == batch:
            inputs[names[module]] = given

    hooks = [module.register_forward_hook(after) for module in names]
    if host.blocks and (attention := find_attention(host.model.get_submodule(host.blocks[-1].path))) is not None:
        hooks.append(attention.register_forward_pre_hook(before, with_kwargs=True))
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()
        maps += _from_blocks(host, outputs, inputs) + _from_maps(host, outputs)


def _from_blocks(host: Host, outputs: dict[str, Tensor], inputs: dict[str, Tensor]) -> list[FeatureMap]:
    if not host.blocks:
        return []
    last = host.blocks[-1]
    found = [(last.path, last, outputs.get(last.path))]
    found += [(f"input of {path}", last, tensor) for path, tensor in inputs.items()]
    found += [(block.path, block, outputs.get(block.path)) for block in host.blocks[-2:-1]]
    maps = []
    for layer, block, tensor in found:
        if tensor is None:
            continue
        last_axis, first_axis = tensor.shape[-1] == block.end.dim, tensor.shape[1] == block.end.dim
        channels_last = last_axis and (not first_axis or host.layout == "NHWC")
        if _places(tensor, block.prefix_tokens, channels_last=channels_last) > 1:
            maps.append(FeatureMap(layer, tensor, block.prefix_tokens, channels_last))
    return maps


def _from_maps(host: Host, outputs: dict[str, Tensor]) -> list[FeatureMap]:
    channels_last = host.layout == "NHWC"
    # Covariances, B, heads, d, d, and queries, B, heads, N, d, are not spatial maps.
    inner = tuple(
        f"{path}."
        for path, module in host.model.named_modules()
        if isinstance(module, SecondOrder) or is_attention(path)
    )
    paths = list(outputs)
    begun = min((paths.index(block.path) for block in host.blocks if block.path in outputs), default=0)
    return [
        FeatureMap(path, outputs[path], channels_last=channels_last)
        for path in reversed(paths[begun:])
        if (tensor := outputs[path]).ndim == 4
        and not isinstance(host.model.get_submodule(path), NO_FEATURES)
        and not path.startswith(inner)
        and _places(tensor, 0, channels_last=channels_last) > 1
    ]


def _places(tensor: Tensor, prefix: int, *, channels_last: bool) -> int:
    if tensor.ndim == 3:
        return tensor.shape[1] - prefix
    return tensor.shape[1] * tensor.shape[2] if channels_last else tensor.shape[2] * tensor.shape[3]


@register_view("gradcam", rank=10)
def _gradcam(request: ViewRequest) -> list[View]:
    assert request.images is not None
    model = Pooled(request.model) if is_dense(request.captured.output) else request.model
    answer = next((answer for answer in request.answers if answer is not None), None)
    given: Any = {"classes": request.classes, "numbers": answer is not None and not shares_of(answer)}
    # One image at a time: a backward pass stores all activations.
    return [
        gradcam_view(model, request.images[i : i + 1], [pixels], **given)[0] for i, pixels in enumerate(request.pixels)
    ]
