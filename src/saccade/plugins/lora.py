"""LoRA: low-rank adapters beside frozen linear layers, made by peft."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ._parts import ATTENTION_NAMES
from .attach import Handle, attached
from .registry import register_plugin
from .tokens import Host, HostError, find_embedding, require_blocks

Targets = Literal["all", "attention"] | list[str]
MADE = "default"  # peft's name of an adapter


@register_plugin("lora")
class LoRA:
    """Train low-rank adapters instead of a model's own weights (Hu et al. 2021).

    Every chosen linear layer of the blocks becomes W x + (alpha / rank) B A x, which equals W x at first. The model's
    weights are frozen, except its classifier and the parameters of other plug-ins. Adapters are children of their
    layers, whose own names and weights stay, so a model's weights are loaded with and without them.

    Args:
        rank: rank of the adapters.
        alpha: their scale is alpha / rank.
        drop_rate: dropout before them.
        targets: "all" linear layers of the blocks; those of the "attention"; or layers by name, such as
            [q_proj,v_proj].
        norms: also train the norms.
    """

    def __init__(
        self,
        *,
        rank: int = 8,
        alpha: float = 16.0,
        drop_rate: float = 0.0,
        targets: Targets = "all",
        norms: bool = False,
    ) -> None:
        if rank < 1 or not alpha > 0 or not 0 <= drop_rate < 1:
            raise ValueError(
                f"rank={rank}, alpha={alpha} and drop_rate={drop_rate} were given; rank must be 1 or more, alpha above "
                "0, and drop_rate from 0 to below 1"
            )
        if not targets or (isinstance(targets, str) and targets not in ("all", "attention")):
            raise ValueError(
                f"targets={targets!r} was given; give 'all', 'attention', or names such as [q_proj,v_proj]"
            )
        self.rank, self.alpha, self.drop_rate = rank, alpha, drop_rate
        self.targets: Targets = targets
        self.norms = norms

    def install(self, host: Host, handle: Handle) -> None:
        """Freeze the model, and add adapters to its layers."""
        others = [other for other in attached(host.model) if other is not handle]
        if any(isinstance(other.plugin, LoRA) for other in others):
            raise HostError(f"{host.name} already has LoRA; detach it first")
        require_blocks(host, "LoRA")
        layers = self._choose(host)
        kept = {id(p) for other in others for p in other.parameters()}
        body = [p for p in _body_parameters(host, norms=self.norms) if id(p) not in kept]
        handle.hook(_Frozen(host.model, body))
        for layer, made in zip(layers.values(), self._make(list(layers.values())), strict=True):
            name = handle.add(layer, "lora", Adapter(made))
            handle.hook(layer.register_forward_hook(_Beside(layer.get_submodule(name)), prepend=True))
        for module in host.model.modules():
            if isinstance(module, nn.TransformerEncoder):  # its short cut for frozen layers would skip adapters
                handle.replace(module, "use_nested_tensor", False)
        if added := getattr(host.model, "added_tokens", 0):
            embedding: Any = find_embedding(host.model)
            rows, dim = embedding.weight.shape
            name = handle.add(embedding, "lora", NewTokens(rows - added, added, dim))
            handle.hook(embedding.register_forward_hook(_Beside(embedding.get_submodule(name)), prepend=True))

    def _choose(self, host: Host) -> dict[str, nn.Module]:
        """Return the layers that get adapters, by path."""
        inside = {
            f"{block.path}.{path}": layer
            for block in host.blocks
            for path, layer in _linear_layers(host.model.get_submodule(block.path))
        }
        if self.targets == "all":
            found = inside
        elif self.targets == "attention":
            found = {path: layer for path, layer in inside.items() if set(path.split(".")) & set(ATTENTION_NAMES)}
        else:
            found = {path: layer for path, layer in inside.items() if path.rpartition(".")[2] in self.targets}
        names = sorted({path.rpartition(".")[2] for path in inside})
        if not found or (not isinstance(self.targets, str) and not set(self.targets) <= set(names)):
            raise HostError(
                f"targets={self.targets!r} was given, but the linear layers in the blocks of {host.name} are "
                f"{', '.join(names) or 'none'}; name some of them, or choose another model"
            )
        return found

    def _make(self, layers: list[nn.Module]) -> list[Any]:
        """Return peft's layers around the given ones."""
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise ImportError(f"LoRA needs {error.name}; install it with pip install 'saccade[lora]'") from None
        around = nn.ModuleDict({str(number): layer for number, layer in enumerate(layers)})
        trained = [(p, p.requires_grad) for p in around.parameters()]
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # type: ignore[arg-type] # peft divides it by the rank, as any number
            lora_dropout=self.drop_rate,
            target_modules=r"\d+",
            fan_in_fan_out=any(hasattr(layer, "nf") for layer in layers),
        )
        inject_adapter_in_model(config, around)
        for parameter, was in trained:
            parameter.requires_grad_(was)
        return list(around.children())

    def __repr__(self) -> str:
        return f"LoRA({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Adapter(nn.Module):
    """The low-rank branch of a layer, scale * B A dropout(x), from peft's layer around it."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.dropout: nn.Module = made.lora_dropout[MADE]
        self.lora_A: nn.Module = made.lora_A[MADE]
        self.lora_B: nn.Module = made.lora_B[MADE]
        self.scaling: float = made.scaling[MADE]

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the layer's output, ..., out_features."""
        return self.lora_B(self.lora_A(self.dropout(x))) * self.scaling


class NewTokens(nn.Module):
    """Changes of the embeddings of tokens that a frozen model had not, from the number `first`."""

    def __init__(self, first: int, count: int, dim: int) -> None:
        super().__init__()
        self.first = first
        self.weight = nn.Parameter(torch.zeros(count, dim))

    def forward(self, ids: Tensor) -> Tensor:
        """Return what is added to the embeddings, B, N, C."""
        new = (ids >= self.first)[..., None]
        return F.embedding((ids - self.first).clamp_min(0), self.weight) * new


class _Beside:
    """Forward hook that adds a branch's output to the layer's."""

    def __init__(self, branch: nn.Module) -> None:
        self.branch = branch

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + self.branch(args[0])


class _Frozen:
    """Freezes parameters until it is removed; they are known by their places, since loading may put others there."""

    def __init__(self, model: nn.Module, parameters: list[nn.Parameter]) -> None:
        chosen = {id(p) for p in parameters if p.requires_grad}
        places = ((module, name, p) for module in model.modules() for name, p in module._parameters.items())
        self.places = [(module, name) for module, name, p in places if id(p) in chosen]
        self._train(trained=False)

    def remove(self) -> None:
        """Let them be trained again."""
        self._train(trained=True)

    def _train(self, *, trained: bool) -> None:
        for module, name in self.places:
            parameter = module._parameters.get(name)
            if parameter is not None:
                parameter.requires_grad_(trained)


def _linear_layers(block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a block's linear layers that are called as modules, not read by their weights."""
    for path, module in block.named_modules():
        parent, _, name = path.rpartition(".")
        owner: Any = block.get_submodule(parent)
        if isinstance(owner, nn.MultiheadAttention) or (name == "qkv" and getattr(owner, "q_bias", None) is not None):
            continue
        if isinstance(module, nn.Linear) or hasattr(module, "nf"):
            yield path, module


def _body_parameters(host: Host, *, norms: bool) -> list[nn.Parameter]:
    """Return the parameters to freeze: all but a classifier, a pooler before it and, if they are trained, norms."""
    model: Any = host.model
    if isinstance(getattr(model, "host", None), nn.Module):
        raise HostError(f"LoRA trains a model's head with its adapters, but it is not known in {host.name}")
    parts = (getattr(model, name, None) for name in ("base_model", "backbone"))
    body = next((part for part in parts if isinstance(part, nn.Module)), model)
    heads = model.get_classifier() if hasattr(model, "get_classifier") else ()
    trained = [*(heads if isinstance(heads, tuple) else (heads,)), getattr(body, "pooler", None)]
    if norms:
        trained += [module for module in body.modules() if "norm" in type(module).__name__.lower()]
    kept = {id(p) for part in trained if isinstance(part, nn.Module) for p in part.parameters()}
    return [p for p in body.parameters() if id(p) not in kept]
