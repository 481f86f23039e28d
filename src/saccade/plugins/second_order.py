"""SoT's second-order classification head for any image or text transformer."""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..layers.second_order import Fusion, Pooling, SecondOrder
from ..settings.values import from_none, require_choice
from .attach import Handle, attached
from .masks import Members
from .registry import register_plugin
from .tokens import CLASS_OUTPUT, Host, HostError, split_tokens

ClassToken = Literal["auto", "none"] | None
HEAD_DIMS = ((15e6, 14), (45e6, 24), (float("inf"), 38))  # head_dim by number of parameters
CLASSIFIERS = ("classifier", "score")  # names of Hugging Face classifiers
BEFORE = ("pre_classifier", "head")  # layers before the classifier


@register_plugin("second_order")
class SecondOrderHead:
    """Replace a model's classifier by one on class token and patch (or word) tokens.

    In models without a class token (Swin, ConvNeXt, ResNet, Mixer) it replaces the pooling, as in the paper for Swin.
    In text models padding is ignored, and the class token is the first token, or the last one in causal models (GPT).

    Args:
        num_classes: number of classes; default: the model's.
        fusion: "sum", "concat", "aggr_all" or "late".
        pooling: "mgcrp", "gcp", "gap", "fc" or None (only the class token).
        num_heads: heads of the cross-covariance.
        head_dim: their width; default: 14, 24 or 38 as in SoT-Tiny, -Small and -Base, for models with up to 15 million
            parameters without classifier, up to 45 million, and more, as in the paper for DeiT, T2T-ViT and Swin.
            "width" chooses by token width, as earlier versions did.
        drop_rate: dropout of the second-order representation.
        class_token: None: only patch tokens; "auto": also the class token, if there is one.
        beside: keep the model's trained classifier, and add the logits of the patch tokens, initialised to zero; for
            timm models.
        options: options of the pooling, such as normalization="svpn_exact" or num_iter=3.
    """

    option_sources = (SecondOrder,)
    option_hidden = ("dim", "num_prefix_tokens", "last_is_no_word")  # determined by the model

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        fusion: Fusion = "sum",
        pooling: Pooling = "mgcrp",
        num_heads: int = 6,
        head_dim: int | Literal["width"] | None = None,
        drop_rate: float = 0.0,
        class_token: ClassToken = "auto",
        beside: bool = False,
        **options: Any,
    ) -> None:
        require_choice("class_token", class_token, ClassToken)
        if isinstance(head_dim, str) and head_dim != "width":
            raise ValueError(f"head_dim={head_dim!r} was given; give a whole number, 'width', or None")
        tried = head_dim if isinstance(head_dim, int) else 14
        if num_heads < 1 or tried < 1 or not 0 <= drop_rate < 1:
            raise ValueError(
                f"num_heads={num_heads}, head_dim={head_dim} and drop_rate={drop_rate} were given; the first two "
                "must be 1 or more, the last from 0 to below 1"
            )
        SecondOrder(32, 2, fusion=fusion, pooling=pooling, num_heads=num_heads, head_dim=tried, **options)
        self.num_classes = num_classes
        self.fusion: Fusion = fusion
        self.pooling: Pooling = from_none(pooling)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.drop_rate = drop_rate
        self.class_token = class_token
        self.beside = beside
        self.options = options

    @property
    def words_only(self) -> bool:
        """Whether the class token is not used."""
        return self.class_token != "auto" or self.beside

    def install(self, host: Host, handle: Handle) -> None:
        """Replace the model's classifier."""
        model: Any = host.model
        if any(isinstance(h.plugin, SecondOrderHead) and h is not handle for h in attached(model)):
            raise HostError(f"{host.name} already has a second-order head; detach it first")
        if any(isinstance(module, SecondOrder) for module in model.modules()):
            raise HostError(f"{host.name} was built with a second-order head; set its own options instead")
        if hasattr(model, "forward_features") and hasattr(model, "forward_head"):
            self._install_timm(host, handle)
        elif self.beside:
            raise HostError(
                f"beside=True was given, but it only works with timm models, not with {host.name}; remove it"
            )
        elif hasattr(model, "base_model") and any(hasattr(model, name) for name in CLASSIFIERS):
            self._install_transformers(host, handle)
        else:
            raise HostError(
                f"SecondOrderHead replaces a classifier, but found none in {host.name}. Looked for timm's "
                "`forward_features` and `forward_head`, or a Hugging Face model with `base_model` and one of "
                f"{', '.join(CLASSIFIERS)}. Give the whole classification model (not just the encoder, not "
                "features_only), or give your module forward_features(x) -> tokens B, N, C and forward_head(tokens)"
            )

    def build(
        self, dim: int, num_classes: int, *, size: int, class_token: Literal["first", "last"] | None, prefix: int
    ) -> SecondOrder:
        """Build the head for the given token width and model size."""
        by_width = 14 if dim < 300 else 24 if dim < 450 else 38
        by_size = next(found for most, found in HEAD_DIMS if size < most)
        head_dim = by_width if self.head_dim == "width" else self.head_dim or by_size
        if self.words_only and self.pooling in ("fc", None):
            raise HostError(
                f"pooling={self.pooling!r} uses only the class token, but class_token=None excludes it; choose "
                "another pooling"
            )
        return SecondOrder(
            dim,
            self.num_classes or num_classes,
            fusion=self.fusion,
            pooling=self.pooling,
            class_token=None if self.words_only else class_token,
            num_prefix_tokens=prefix,
            last_is_no_word=self.words_only and class_token == "last",
            num_heads=self.num_heads,
            head_dim=head_dim,
            drop_rate=self.drop_rate,
            **self.options,
        )

    def _install_timm(self, host: Host, handle: Handle) -> None:
        model: Any = host.model
        prefix = host.output_prefix
        words_only = prefix == 0 or self.words_only
        if words_only and self.pooling in ("fc", None):
            raise HostError(
                f"pooling={self.pooling!r} uses only the class token, but {host.name} has none, or class_token=None "
                "excludes it; choose another pooling"
            )
        carried = prefix if getattr(model, "prefix_in_channels", False) else 0
        dim = model.num_features // (1 + carried)
        size = _count(model) - sum(_count(part) for path in _classifier_paths(model) if (part := _part(model, path)))
        token: Literal["first"] | None = None if words_only else "first"
        layer = self.build(dim, model.num_classes, size=size, class_token=token, prefix=prefix)
        if self.beside:
            self._install_beside(host, handle, layer, carried=carried)
            return
        for path in _classifier_paths(model):
            parent, _, name = path.rpartition(".")
            if _part(model, path) is not None:
                handle.replace(model.get_submodule(parent), name, nn.Identity())
        handle.add(model, "second_order", _FromFeatures(layer, channels_last=host.layout == "NHWC", carried=carried))
        handle.replace(model, "num_classes", layer.num_classes)
        handle.replace(model, "forward_head", partial(_forward_head, model))
        handle.replace(model, "get_classifier", partial(_get_classifier, model))
        handle.replace(model, "reset_classifier", partial(_reset_classifier, model))
        if type(model).__name__ in CLASS_OUTPUT:
            handle.replace(model, "forward_features", partial(_class_and_words, model))

    def _install_beside(self, host: Host, handle: Handle, layer: SecondOrder, *, carried: int) -> None:
        """Add the head's logits to those of the model's classifier."""
        model: Any = host.model
        if type(model).__name__ in CLASS_OUTPUT or layer.num_classes != model.num_classes:
            raise HostError(
                f"beside=True was given, but {host.name} has {model.num_classes} classes and the head "
                f"{layer.num_classes}; both must have the same number of classes, and the classifier must read all "
                "tokens that forward_features returns"
            )
        _silence(layer)
        handle.add(model, "second_order", _FromFeatures(layer, channels_last=host.layout == "NHWC", carried=carried))
        handle.replace(model, "forward_head", partial(_both_heads, model))
        handle.replace(model, "reset_classifier", partial(_reset_both, model))

    def _install_transformers(self, host: Host, handle: Handle) -> None:
        model: Any = host.model
        name = next(name for name in CLASSIFIERS if hasattr(model, name))
        config = model.config.get_text_config() if host.text else model.config
        class_token: Literal["first", "last"] = "last" if host.causal else "first"
        layer = self.build(
            config.hidden_size,
            model.config.num_labels,
            size=_count(model.base_model),
            class_token=class_token,
            prefix=0 if host.causal else 1,
        )
        members = Members(host, "all")
        members.install(host, handle)
        seen = _Seen()
        handle.hook(model.base_model.register_forward_hook(seen.keep))
        handle.replace(model, name, _FromSeen(layer, seen, members, every_token=host.causal))
        # Layers between tokens and classifier are no longer used, and would have no gradient.
        for owner in (model.base_model, model):
            if isinstance(getattr(owner, "pooler", None), nn.Module):
                handle.replace(owner, "pooler", _TakeFirst())
        for before in BEFORE:
            if host.text and isinstance(getattr(model, before, None), nn.Module):
                handle.replace(model, before, nn.Identity())


class _FromFeatures(nn.Module):
    """The head on the output of timm's `forward_features`."""

    def __init__(self, layer: SecondOrder, *, channels_last: bool, carried: int = 0) -> None:
        super().__init__()
        self.layer = layer
        self.channels_last = channels_last
        self.carried = carried  # prefix tokens stored in a map's channels

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Classify tokens B, N, C or a map."""
        if x.ndim == 4 and self.carried:
            tokens = split_tokens(x, layout="NCHW", prefix_tokens=self.carried)
            assert tokens.prefix is not None
            x = torch.cat([tokens.prefix, tokens.words], dim=1)
        elif x.ndim == 4:
            x = x.flatten(1, 2) if self.channels_last else x.flatten(2).mT
        return self.layer(x, pre_logits=pre_logits)


def _forward_head(self: Any, x: Tensor, pre_logits: bool = False) -> Tensor:
    for name in ("fc_norm", "head.norm"):  # norms that models apply after pooling
        parent, _, leaf = name.rpartition(".")
        norm = getattr(getattr(self, parent, None) if parent else self, leaf, None)
        if isinstance(norm, nn.Module):
            x = norm(x)
    return self.second_order(x, pre_logits=pre_logits)


def _both_heads(self: Any, x: Tensor, pre_logits: bool = False) -> Tensor:
    own: Tensor = type(self).forward_head(self, x, pre_logits=pre_logits)
    return own if pre_logits or self.num_classes == 0 else own + _forward_head(self, x)


def _reset_both(self: Any, num_classes: int, *args: Any, **options: Any) -> None:
    type(self).reset_classifier(self, num_classes, *args, **options)
    _reset_classifier(self, num_classes)
    _silence(self.second_order.layer)


def _silence(layer: SecondOrder) -> None:
    """Initialise a head to zero logits."""
    if layer.word_fc is not None:
        nn.init.zeros_(layer.word_fc.weight)
        nn.init.zeros_(layer.word_fc.bias)


def _get_classifier(self: Any) -> nn.Module:
    return self.second_order.layer


def _reset_classifier(self: Any, num_classes: int, global_pool: str | None = None) -> None:  # noqa: ARG001
    self.num_classes = num_classes
    self.second_order.layer.reset(num_classes)


def _class_and_words(self: Any, x: Tensor) -> Tensor:
    """PiT's features including the patch tokens, which its own head ignores."""
    prefix, (words,) = self.forward_intermediates(x, indices=1)
    return torch.cat([prefix, self.norm(words.flatten(2).mT)], dim=1)


def _classifier_paths(model: Any) -> tuple[str, ...]:
    paths = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or "head"
    paths = (paths,) if isinstance(paths, str) else tuple(paths)
    return (*paths, *(name for name in ("head_dist", "aux_head") if getattr(model, name, None) is not None))


def _part(model: nn.Module, path: str) -> nn.Module | None:
    parent, _, name = path.rpartition(".")
    return getattr(model.get_submodule(parent), name, None)


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


class _Seen:
    """Stores the last hidden state of the current forward pass."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None

    def keep(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """Forward hook of the encoder."""
        self.tokens = output[0]

    def take(self) -> Tensor:
        """Return and clear the tokens."""
        tokens, self.tokens = self.tokens, None
        assert tokens is not None
        return tokens


class _FromSeen(nn.Module):
    """The head in place of a Hugging Face classifier; it uses the encoder's tokens instead of its input."""

    def __init__(self, layer: SecondOrder, seen: _Seen, members: Members, *, every_token: bool) -> None:
        super().__init__()
        self.layer = layer
        self.seen = seen
        self.members = members
        self.every_token = every_token

    def forward(self, handed: Tensor) -> Tensor:
        """Return logits, repeated for every token if the model selects one afterwards (GPT)."""
        tokens = self.seen.take()
        logits = self.layer(tokens, self.members.final(tokens))
        return logits[:, None].expand(-1, handed.shape[1], -1) if self.every_token else logits


class _TakeFirst(nn.Module):
    """Replaces an unused pooler."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the first token."""
        return hidden[:, 0]
