"""The same images or texts as several models see them: one figure of each model, side by side."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .request import choose_views
from .result import Explanation
from .view import ExplainedSample, Figure, View

ATTRIBUTIONS = ("gradcam", "words", "regions")  # views of what a whole prediction comes from


def choose_attributions(views: Sequence[str] | None, *, reads: str) -> list[str]:
    """Return the requested views that are shown side by side, default all; refuse others."""
    known = [key for key in choose_views(None, reads=reads) if key in ATTRIBUTIONS]
    if refused := [key for key in choose_views(views, reads=reads) if key not in known and views is not None]:
        raise ValueError(
            f"views = {', '.join(refused)} was given with beside, which shows {' and '.join(known)} of {reads}; leave "
            "it out, or explain each model by itself"
        )
    return known if views is None else list(views)


def join(explanations: Sequence[Explanation]) -> Explanation:
    """Return one explanation whose views have a figure of each model's whole prediction, in order."""
    names = _names(explanations)
    samples = []
    for place, first in enumerate(explanations[0].samples):
        seen = [one.samples[place] for one in explanations]
        samples.append(replace(first, views=[_join_view(seen, number, names) for number in range(len(first.views))]))
    notes = [f"{name}: {note}" for name, one in zip(names, explanations, strict=True) for note in one.notes]
    return replace(explanations[0], model=names[0], samples=samples, notes=tuple(notes))


def _join_view(seen: Sequence[ExplainedSample], number: int, names: Sequence[str]) -> View:
    views = [one.views[number] for one in seen]
    figures, missing = [], []
    for place, (sample, view, name) in enumerate(zip(seen, views, names, strict=True), 1):
        if not view.figures:
            missing.append(f"{name}: {view.absent}")
            continue
        whole = next((figure for figure in view.figures if figure.key == view.key), view.figures[0])
        figures.append(_of_model(whole, sample, name, key=f"{view.key}-model-{place}"))
    numbers = {name: view.numbers for name, view in zip(names, views, strict=True)}
    about = " ".join([views[0].about, *missing])
    absent = None if figures else " ".join(missing)
    return replace(views[0], about=about, figures=figures, numbers=numbers, absent=absent, row=True)


def _of_model(figure: Figure, sample: ExplainedSample, name: str, *, key: str) -> Figure:
    """Return a model's figure, whose caption begins with the model and its prediction."""
    label, text, _ = sample.rows[0] if sample.rows else ("", "", None)
    predicts = f"{name} predicts {label} ({text})." if label else f"{name}."
    return replace(figure, key=key, caption=f"{predicts} {figure.caption}", numbers={"model": name, **figure.numbers})


def _names(explanations: Sequence[Explanation]) -> list[str]:
    """Return the models' names: of runs the folders', numbered if they are not unique."""
    names = [Path(one.target).name if one.target and Path(one.target).is_dir() else one.model for one in explanations]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]
