"""Base of plug-ins with modules on a model's tokens."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import nn

from ..settings.values import require_choice
from .attach import Handle
from .masks import Members, Part, WithMask
from .tokens import Block, HookPoint, Host, HostError, require_blocks

Position = Literal["mlp", "mlp_mid", "mlp_front", "attention", "both"]

PLACES = {
    "mlp": ("end",),
    "mlp_mid": ("middle",),
    "mlp_front": ("front",),
    "attention": ("attention",),
    "both": ("attention", "end"),
}


class OnTokens:
    """Base of plug-ins that apply a module to a branch's tokens.

    Subclasses define the module's `name` and `build` one for each hook point; its forward takes the features and a mask
    of tokens that take part, or None.

    Args:
        position: "mlp" after the MLP, "mlp_mid" between its activation and last layer, "mlp_front" before it,
            "attention" after the attention, "both" after attention and after the MLP; always before the residual sum.
        layers: "upper" half of the blocks, "all", or indices of blocks (negative ones count from the last).
        class_token: whether prefix tokens take part; otherwise they neither count nor change.
        tokens: in multimodal models, the tokens that take part: "all", "image" or "text".
        causal: tokens only see those before them; None: like the model's attention.
        spare_pyramid: skip blocks whose features feed a pyramid.
    """

    name: ClassVar[str]

    def __init__(
        self,
        *,
        position: Position = "mlp",
        layers: Literal["upper", "all"] | Sequence[int] = "upper",
        class_token: bool = True,
        tokens: Part = "all",
        causal: bool | None = None,
        spare_pyramid: bool = False,
    ) -> None:
        require_choice("position", position, PLACES)
        require_choice("tokens", tokens, ("all", "image", "text"))
        if isinstance(layers, str) and layers not in ("upper", "all"):
            raise ValueError(f"layers={layers!r} was given; allowed are 'upper', 'all' or a list of block numbers")
        self.position = position
        self.layers = layers if isinstance(layers, str) else tuple(layers)
        self.class_token = class_token
        self.tokens = tokens
        self.causal = causal
        self.spare_pyramid = spare_pyramid

    def build(self, place: HookPoint, *, skip: int, causal: bool) -> nn.Module:
        """Build the module for one hook point; the first `skip` tokens do not take part."""
        raise NotImplementedError

    def install(self, host: Host, handle: Handle) -> None:
        """Add a module at the chosen hook points of the chosen blocks."""
        title = type(self).__name__
        self._check(host, title)
        blocks = choose_blocks(host, self.layers, title=title, spare_pyramid=self.spare_pyramid)
        members = Members(host, self.tokens)
        members.install(host, handle)
        causal = host.causal if self.causal is None else self.causal
        for block in blocks:
            for spot in PLACES[self.position]:
                place = choose_place(host, block, spot, title)
                name = f"{self.name}_attention" if spot == "attention" else self.name
                skip = 0 if self.class_token else block.prefix_tokens
                parent = host.model.get_submodule(block.path)
                free = handle.add(parent, name, self.build(place, skip=skip, causal=causal))
                handle.listen(place, WithMask(parent.get_submodule(free), members))

    def _check(self, host: Host, title: str) -> None:
        require_blocks(host, title)
        if self.tokens != "all" and host.joint is None:
            raise HostError(
                f"tokens={self.tokens!r} chooses between the text and the image of one sequence, which {host.name} "
                "does not have; leave it at 'all'"
            )
        if not self.class_token and host.text and not host.prefix_tokens:
            raise HostError(
                f"class_token=False excludes class tokens, but their number is unknown for {host.name}; pass "
                "prefix_tokens=1 if a text starts with one"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def choose_blocks(
    host: Host,
    layers: str | Sequence[int],
    *,
    title: str,
    spare_pyramid: bool = False,
) -> list[Block]:
    """Return the blocks for `layers`; "upper" is the second half, including the middle one."""
    count = len(host.blocks)
    if isinstance(layers, str):
        chosen = list(host.blocks if layers == "all" else host.blocks[count // 2 :])
    else:
        wrong = [i for i in layers if not -count <= i < count]
        if wrong or not layers:
            raise HostError(
                f"layers={list(layers)} was given; {host.name} has {count} blocks, so 'upper', 'all' or numbers from "
                f"{-count} to {count - 1} are allowed"
            )
        chosen = [host.blocks[i] for i in sorted({i % count for i in layers})]
    if spare_pyramid:
        if not host.feeding:
            raise HostError(
                f"spare_pyramid=True was given, but it is unknown which blocks of {host.name} feed a pyramid; build "
                "it with features_only=True and out_indices=, or name the other blocks with layers=[...]"
            )
        chosen = [block for block in chosen if block.path not in host.feeding]
        if not chosen:
            raise HostError(
                f"spare_pyramid=True leaves {title} no block of {host.name}; choose more of them with layers="
            )
    for block in chosen:
        if block.obstacle is not None:
            raise HostError(f"{title} cannot average the tokens of {block.path} of {host.name}: {block.obstacle}")
    return chosen


def choose_place(host: Host, block: Block, spot: str, title: str) -> HookPoint:
    """Return a hook point of a block by name, if it sees the whole image."""
    place: HookPoint | None = getattr(block, spot)
    if place is None:
        raise HostError(
            f"{title} at the attention: {block.path} of {host.name} has no attention; choose position='mlp'"
        )
    if spot == "attention" and block.windowed:
        raise HostError(
            f"{title} at the attention: {block.path} of {host.name} attends within windows, so a mean there would be "
            "over a window instead of the image; choose position='mlp'"
        )
    return place
