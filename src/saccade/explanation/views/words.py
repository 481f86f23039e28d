"""View of word influence: the contribution of each word to the prediction, as coloured text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...plugins.tokens import HostError, find_embedding
from ...report import Html, tag
from ...tasks.classification.task import read_logits
from ..outputs import Text, choose_targets, name_class, read_text
from ..paper_words import by_leaving_out, by_relevance
from ..recording import PARTS, eval_mode, record_head
from ..request import Method, ViewRequest, register_view
from ..view import Figure, View

TITLE = "Which words the prediction comes from"
LEGEND = (
    " Blue words speak for the class, orange and underlined ones against it; the strongest word has the full colour. "
    "Padding is excluded. Point at a word to see its number. The SoT paper names relevance and LIME (--method) for its "
    "figures."
)
METHODS = {
    "gradient": (
        "Gradient times input: a word's influence is its embedding times the gradient of the score with respect to it "
        "(summed over channels, and over the pieces of a word): how much the score would lose, to first order, if the "
        "embedding were zero."
    ),
    "integrated": (
        "Integrated gradients: a word's influence is its embedding times the mean gradient of the score on the path "
        "from zero embeddings to those of the text (summed over channels, and over the pieces of a word). The "
        "numbers sum to the change of the score along that path."
    ),
    "relevance": (
        "Relevance (Chefer et al. 2021): every layer's attention times its gradient and its relevance, where positive, "
        "chained over the layers: how much the tokens that the classifier reads owe to each word. It is never negative."
    ),
    "lime": (
        "LIME (as in Yun et al. 2021): the score is computed for many versions of the text without some of its words, "
        "and a word's influence is its coefficient in a linear fit. Words that are left out have an embedding of "
        "zeros; special tokens are always kept."
    ),
}
STEPS = 32  # steps of integrated gradients
FOR, AGAINST, NEUTRAL, INK = (86, 163, 245), (245, 150, 60), (238, 238, 238), "#111111"
STARTS = ("Ġ", "▁")  # markers of word beginnings in vocabularies


@dataclass(frozen=True)
class Influence:
    """The influence of the tokens of one text."""

    target: int  # target class
    scores: dict[str, np.ndarray]  # by part of the logits ("both", "class", "words"), each N; zero for padding
    logits: dict[str, float]  # by part, logit of the class
    counts: np.ndarray  # N; False for padding


def words_view(
    model: nn.Module,
    inputs: Text,
    *,
    words: Sequence[str] | None = None,
    tokenizer: Any = None,
    target: int | None = None,
    classes: Sequence[str] | None = None,
    method: Method = "gradient",
) -> View:
    """Return the view of a text coloured by word influence, for second-order heads also of each part.

    Args:
        model: any text classifier with a token embedding.
        inputs: token ids, 1, N; or named inputs, `input_ids` and optionally `attention_mask` (each 1, N); or a string,
            if there is a tokenizer.
        words: the text of each token, shown as given.
        tokenizer: Hugging Face tokenizer, instead of `words`; subwords are joined.
        target: target class; default: the predicted one.
        classes: class names.
        method: "gradient" times input, "integrated" gradients, propagated "relevance", or "lime".
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}: expected one of {', '.join(METHODS)}")
    about = METHODS[method] + LEGEND
    inputs = read_text(inputs, tokenizer, next((p.device for p in model.parameters()), torch.device("cpu")))
    given = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    groups = _groups(given["input_ids"][0].tolist(), _counts(inputs), words, tokenizer)
    special = set(getattr(tokenizer, "all_special_ids", ()))
    changed = [places for _, places in groups if int(given["input_ids"][0, places[0]]) not in special]
    try:
        found = compute_influence(model, inputs, target=target, method=method, words=changed)
    except HostError as error:
        return View("words", TITLE, about, absent=f"No influence of words: {error.message}.")
    name = name_class(found.target, classes)
    figures = [_figure(part, found, groups, name) for part in found.scores]
    numbers = {"target": found.target, "class": name, "method": method}
    return View("words", TITLE, about, figures=figures, numbers=numbers)


def compute_influence(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Tensor],
    *,
    target: int | None = None,
    method: Method = "gradient",
    steps: int = STEPS,
    words: Sequence[Sequence[int]] | None = None,
) -> Influence:
    """Return the influence of the tokens of one text, summed over channels.

    Args:
        inputs: as in `words_view`, except strings.
        steps: steps of integrated gradients (midpoint rule).
        words: tokens of each word, for "lime"; default: every token that is not padding.
    """
    ids = inputs if isinstance(inputs, Tensor) else inputs["input_ids"]
    if ids.ndim != 2 or len(ids) != 1:
        raise ValueError(f"got token ids of shape {tuple(ids.shape)}; give one text at a time, shape (1, N)")
    counts = _counts(inputs)
    if method in ("relevance", "lime"):
        words = [[place] for place in np.flatnonzero(counts).tolist()] if words is None else words
        by = (
            by_relevance(model, inputs, target)
            if method == "relevance"
            else by_leaving_out(model, inputs, target, words)
        )
        return Influence(by[0], {name: part * counts for name, part in by[1].items()}, by[2], counts)
    whole = _differentiate(model, inputs, ids, target, share=1.0)
    gradients = whole.gradients
    if method == "integrated":
        way = [
            _differentiate(model, inputs, ids, whole.target, share=(number + 0.5) / steps).gradients
            for number in range(steps)
        ]
        gradients = {name: torch.stack([one[name] for one in way]).mean(0) for name in gradients}
    scores = {name: (g * whole.embedded).sum(-1)[0].float().cpu().numpy() * counts for name, g in gradients.items()}
    return Influence(whole.target, scores, whole.logits, counts)


def _counts(inputs: Tensor | Mapping[str, Tensor]) -> np.ndarray:
    """Return which tokens of one text are not padding, N."""
    if isinstance(inputs, Tensor):
        return np.ones(inputs.shape[1], dtype=bool)
    mask = inputs.get("attention_mask")
    found: np.ndarray = (
        np.ones(inputs["input_ids"].shape[1], dtype=bool) if mask is None else mask[0].bool().cpu().numpy()
    )
    return found


class _Differentiated(NamedTuple):
    """Result of one pass: target, logits by part, gradients with respect to the embeddings, and these, 1, N, C."""

    target: int
    logits: dict[str, float]
    gradients: dict[str, Tensor]
    embedded: Tensor


def _differentiate(
    model: nn.Module, inputs: Tensor | Mapping[str, Tensor], ids: Tensor, target: int | None, *, share: float
) -> _Differentiated:
    """Run a model on embeddings scaled by `share`, and differentiate."""
    leaves: list[Tensor] = []
    plain: list[Tensor] = []

    def cut(_module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if leaves or output.shape[:2] != ids.shape:
            return None
        plain.append(output.detach())
        leaves.append((share * plain[0]).clone().requires_grad_())
        return leaves[0]

    with torch.inference_mode(False), torch.enable_grad(), eval_mode(model), record_head(model) as call:
        hook = find_embedding(model).register_forward_hook(cut)
        try:
            answer = model(inputs) if isinstance(inputs, Tensor) else model(**inputs)
        finally:
            hook.remove()
        logits = read_logits(answer)
        if logits.ndim != 2 or not leaves:
            raise HostError(f"{type(model).__name__} returns {tuple(logits.shape)}, not the logits of one text")
        chosen = int(choose_targets(logits, target)[0])
        parts = {name: part[0, chosen] for name, part in call.split(logits).items()}
        gradients = {name: torch.autograd.grad(part, leaves[0], retain_graph=True)[0] for name, part in parts.items()}
    return _Differentiated(chosen, {name: part.item() for name, part in parts.items()}, gradients, plain[0])


def join_pieces(tokens: Sequence[str], special: Sequence[bool]) -> list[list[int]]:
    """Group a text's tokens by words.

    Args:
        tokens: tokens as in the vocabulary: continuations begin with "##", or word beginnings with "Ġ" or "▁".
        special: True for special tokens, which are not joined.
    """
    marked = any(token.startswith(STARTS) for token in tokens)
    groups: list[list[int]] = []
    for place, token in enumerate(tokens):
        goes_on = not token.startswith(STARTS) if marked else token.startswith("##")
        if goes_on and groups and not special[place] and not special[place - 1]:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _groups(
    ids: Sequence[int], counts: np.ndarray, words: Sequence[str] | None, tokenizer: Any
) -> list[tuple[str, list[int]]]:
    """Return the words of a text, without padding, and the indices of their tokens."""
    places = [place for place in range(len(ids)) if counts[place]]
    if words is not None:
        if len(words) != len(ids):
            raise ValueError(
                f"got {len(words)} words for {len(ids)} tokens; give one word per token, including padding"
            )
        return [(words[place], [place]) for place in places]
    if tokenizer is None:
        return [(str(ids[place]), [place]) for place in places]
    kept = [ids[place] for place in places]
    special = set(tokenizer.all_special_ids)
    groups = join_pieces(tokenizer.convert_ids_to_tokens(kept), [one in special for one in kept])
    return [(tokenizer.decode([kept[i] for i in group]).strip(), [places[i] for i in group]) for group in groups]


def _figure(part: str, found: Influence, groups: Sequence[tuple[str, list[int]]], name: str) -> Figure:
    scores = [float(found.scores[part][places].sum()) for _, places in groups]
    caption = (
        f"Influence of each word on {name!r} in {PARTS[part]}, whose score for it is {found.logits[part]:.3g}. The "
        f"influences sum to {sum(scores):.3g}."
    )
    influences = [{"word": word, "influence": score} for (word, _), score in zip(groups, scores, strict=True)]
    numbers = {"score": found.logits[part], "words": influences}
    chart = colour_sentence([word for word, _ in groups], scores)
    return Figure("words" if part == "both" else f"words-{part}", caption, chart=chart, numbers=numbers)


def colour_sentence(words: Sequence[str], scores: Sequence[float]) -> Html:
    """Return a paragraph of coloured words; text and background colours are set for light and dark mode."""
    top = max((abs(score) for score in scores), default=0.0)
    children: list[str] = []
    for word, score in zip(words, scores, strict=True):
        strength = abs(score) / top if top > 0 else 0.0
        style = f"background:{word_colour(score, strength)};color:{INK};padding:0 .2em;border-radius:.2em"
        style += ";text-decoration:underline" if score < 0 else ""
        children += [tag("span", word, title=f"{score:+.3g}", style=style), " "]
    return tag("p", *children, class_="sentence", style="line-height:1.8")


def word_colour(score: float, strength: float) -> str:
    """Return a word's background colour: grey at strength 0, the colour of its sign at 1."""
    full = FOR if score >= 0 else AGAINST
    mixed = (round(a + (b - a) * strength) for a, b in zip(NEUTRAL, full, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


@register_view("words", rank=5, reads=("texts", "questions"))
def _words(request: ViewRequest) -> list[View]:
    options: Any = {"tokenizer": request.tokenizer, "classes": request.classes, "method": request.options.method}
    inputs = request.inputs
    if request.loaded is not None:  # a question, whose image is embedded once
        codec: Any = request.loaded.task.codec
        with torch.no_grad():
            inputs = codec.model_inputs(request.model, inputs)
    return [words_view(request.model, inputs, **options)]
