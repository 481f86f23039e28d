"""Influence of tokens by the two methods of SoT's Figure S-5: propagated relevance, and leaving words out."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..plugins.tokens import HostError, find_embedding, find_host
from ..tasks.classification.task import read_logits
from .left_out import influence_of_words
from .outputs import choose_targets
from .recording import eval_mode, record_head
from .relevance import AttentionMaps, alone, chain, passing_on

BATCH = 64  # texts in a batch
Found = tuple[int, dict[str, np.ndarray], dict[str, float]]  # target, scores of tokens and logit by part


def by_relevance(model: nn.Module, inputs: Tensor | Mapping[str, Tensor], target: int | None) -> Found:
    """Return the influence of a text's tokens by attention, its gradient and its relevance.

    A token's influence is its share in the tokens that the classifier reads, weighted by their gradient times value.
    Relevance is propagated from these, through the encoder.
    """
    ids = inputs if isinstance(inputs, Tensor) else inputs["input_ids"]
    base, length = getattr(model, "base_model", model), ids.shape[1]
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        seen.append(output if isinstance(output, Tensor) else output[0])

    with torch.inference_mode(False), torch.enable_grad(), eval_mode(model), alone(model), _leaf(model):
        hook = base.register_forward_hook(keep)
        try:
            with record_head(model) as call, AttentionMaps(length) as maps:
                logits = read_logits(_call(model, inputs))
            with passing_on(model), AttentionMaps(length, relevance=True) as carried:
                _call(model, inputs)
        finally:
            hook.remove()
        if base is model or not maps.maps or len(maps.maps) != len(carried.maps):
            raise HostError(
                f"{type(model).__name__} has no attention between all tokens that relevance could be propagated "
                "through; choose another --method"
            )
        chosen = int(choose_targets(logits, target)[0])
        parts = {name: part[0, chosen] for name, part in call.split(logits).items()}
        scores = {}
        for name, part in parts.items():
            first, *gradients = torch.autograd.grad(part, [seen[0], *maps.maps], retain_graph=True, allow_unused=True)
            read = seen[0].detach() * first
            read = read / read.abs().sum().clamp(min=1e-30)
            relevances = torch.autograd.grad(
                seen[1], carried.maps, grad_outputs=read, retain_graph=True, allow_unused=True
            )
            share = read[0].abs().sum(-1).float().cpu()
            whole = share @ chain(gradients, relevances, length=length)
            place = _class_place(model, length)
            whole[place] -= share[place]  # that the class token reads itself says nothing of words
            scores[name] = whole.numpy()
    return chosen, scores, {name: part.item() for name, part in parts.items()}


def by_leaving_out(
    model: nn.Module, inputs: Tensor | Mapping[str, Tensor], target: int | None, words: Sequence[Sequence[int]]
) -> Found:
    """Return the influence of a text's words by LIME; a word is left out by an embedding of zeros."""
    ids = inputs if isinstance(inputs, Tensor) else inputs["input_ids"]
    kept: list[Tensor] = []

    def silence(_module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        there = kept.pop() if kept else None
        return None if there is None or output.shape[:2] != there.shape else output * there[..., None].to(output.dtype)

    def ask(tokens: np.ndarray) -> dict[str, Tensor]:
        kept[:] = [torch.from_numpy(tokens).to(ids.device)]
        count = len(tokens)
        if isinstance(inputs, Tensor):
            given: Any = inputs.expand(count, -1)
        else:
            given = {name: part.expand(count, *part.shape[1:]) for name, part in inputs.items()}
        return call.split(read_logits(_call(model, given)))

    with torch.no_grad(), eval_mode(model), record_head(model) as call:
        hook = find_embedding(model).register_forward_hook(silence)
        try:
            whole = ask(np.ones((1, ids.shape[1]), dtype=bool))
            chosen = int(choose_targets(whole["both"], target)[0])

            def score(tokens: np.ndarray) -> dict[str, np.ndarray]:
                batches = [ask(tokens[begin : begin + BATCH]) for begin in range(0, len(tokens), BATCH)]
                return {
                    name: torch.cat([one[name][:, chosen] for one in batches]).double().cpu().numpy() for name in whole
                }

            scores = influence_of_words(words, ids.shape[1], score)
        finally:
            hook.remove()
    return chosen, scores, {name: part[0, chosen].item() for name, part in whole.items()}


def _class_place(model: nn.Module, length: int) -> int:
    try:
        return length - 1 if find_host(model).causal else 0
    except HostError:  # of a module whose blocks are not known
        return 0


def _call(model: nn.Module, inputs: Any) -> Any:
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


@contextmanager
def _leaf(model: nn.Module) -> Iterator[None]:
    """Let the graph of a model begin at its token embeddings, within a context."""
    hook = find_embedding(model).register_forward_hook(lambda _module, _args, output: output.detach().requires_grad_())
    try:
        yield
    finally:
        hook.remove()
