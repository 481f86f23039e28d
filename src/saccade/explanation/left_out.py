"""Influence of words by leaving some out, after LIME (Ribeiro et al., 2016), as Yun et al. (2021) use it."""

from collections.abc import Callable, Sequence

import numpy as np

SAMPLES, WIDTH, RIDGE = 512, 0.25, 1e-3  # of LIME for texts: its kernel's width; samples and ridge are ours


def draw_kept(words: int, *, samples: int = SAMPLES, seed: int = 0) -> np.ndarray:
    """Return which words are kept in each sample, S, words bool; the first sample has all."""
    draws = np.random.default_rng(seed)
    kept = np.ones((samples, words), dtype=bool)
    for row in kept[1:]:
        row[draws.choice(words, draws.integers(1, words + 1), replace=False)] = False
    return kept


def fit_influence(kept: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return each word's coefficient in a linear fit of the scores, S; samples near the whole text count more."""
    distance = 1 - np.sqrt(kept.mean(1))  # of the cosine
    weight = np.sqrt(np.exp(-((distance / WIDTH) ** 2)))
    centre = (weight[:, None] * kept).sum(0) / weight.sum(), (weight * scores).sum() / weight.sum()
    x, y = kept - centre[0], scores - centre[1]
    return np.linalg.solve(x.T @ (weight[:, None] * x) + RIDGE * np.eye(x.shape[1]), x.T @ (weight * y))


def influence_of_words(
    words: Sequence[Sequence[int]],
    length: int,
    score: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    samples: int = SAMPLES,
) -> dict[str, np.ndarray]:
    """Return the influence by part of the logits, N; a word's is at its first token.

    Args:
        words: tokens of each word that may be left out.
        length: number of tokens.
        score: returns scores by part, S, for tokens that are kept, S, N bool.
        samples: number of samples.
    """
    if not words:
        return {name: np.zeros(length) for name in score(np.ones((1, length), dtype=bool))}
    kept = draw_kept(len(words), samples=samples)
    tokens = np.ones((samples, length), dtype=bool)
    for number, places in enumerate(words):
        tokens[:, list(places)] = kept[:, number, None]
    found = {}
    for name, scores in score(tokens).items():
        found[name] = np.zeros(length)
        found[name][[places[0] for places in words]] = fit_influence(kept, scores)
    return found
