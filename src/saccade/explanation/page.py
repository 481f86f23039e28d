"""The self-contained page of an explanation, with a row of buttons for layers."""

import math
import shlex
from collections.abc import Sequence

from ..report import Html, Section, encode_image, paragraph, render_page, strip, table, tag
from ..report.page import fold, next_section
from ..tasks import Answer
from .view import Explained, ExplainedSample, Figure, Rows, View

WIDEST = 960  # most pixels of an image's width
ABSENT = "Views that do not apply"
STEPS = 120  # most layers in a row of buttons
SINGULAR = {"classes": "Class", "labels": "Label", "columns": "Column"}  # headings for the parts of answers

STYLE = """
.shown img { max-width: 100%; height: auto; image-rendering: auto; }
.shown { margin: .6rem 0 1.2rem; }
.shown figcaption { font-weight: 400; max-width: 75ch; }
.answer { display: flex; flex-wrap: wrap; gap: 24px; align-items: flex-start; }
.answer > div:last-child { flex: 1 1 420px; min-width: 0; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 280px), 1fr)); gap: 0 24px; }
.share { width: min(30vw, 260px); }
.layers { border: 1px solid var(--rule); border-radius: 8px; padding: 8px 12px 4px; margin: .8rem 0; min-width: 0; }
.layers > legend { color: var(--soft); font-size: .88rem; padding: 0 6px; }
.layers > input { position: absolute; opacity: 0; width: 1px; height: 1px; pointer-events: none; }
.layers > label { display: inline-block; min-width: 2.1em; padding: 3px 7px; margin: 0 2px 6px 0; text-align: center;
  border: 1px solid var(--edge); border-radius: 5px; cursor: pointer; font-size: .88rem; }
.layers > input:checked + label { background: var(--link); color: var(--page); border-color: var(--link); }
.layers > input:focus-visible + label { outline: 3px solid var(--link); outline-offset: 2px; }
.layers > .panels > figure { display: none; }
@media print { .layers > .panels > figure { display: block; } .layers > label { display: none; } }
"""


def render(explanation: Explained) -> str:
    """Render the page."""
    several = len(explanation.samples) > 1
    names = _names(explanation.samples)
    sections: list[Section] = []
    lacking: dict[Html, str] = {}
    for place, sample in enumerate(explanation.samples):
        image = sample.pixels is not None  # for texts, charts are the main content
        shown = [view for view in sample.views if view.absent is None and view.figures]
        above = {(view.key, view.about) for other in explanation.samples[:place] for view in other.views}
        views = [
            (view, _render_view(view, f"p{place + 1}", above, folded=image and several and not _charts_alone(view)))
            for view in shown
        ]
        head, absent = _head(explanation, sample), _absent(sample.views)
        if several:
            bodies = [
                fold(view.title, body) if image and _charts_alone(view) else Html(tag("h3", view.title) + body)
                for view, body in views
            ]
            sections.append(Section(f"image-{place + 1}", names[place], Html("".join((head, *bodies)))))
            lacking.setdefault(absent, names[place])
        else:
            sections.append(Section("answer", "The answer", head))
            sections += [Section(view.key, view.title, body) for view, body in views]
            if absent:
                sections.append(Section("absent", ABSENT, absent))
    for absent, name in lacking.items():  # once, if it is the same for all
        title = ABSENT if len(lacking) == 1 else f"{ABSENT}, {name}"
        sections += [Section("absent", title, absent)] if absent else []
    if explanation.target is not None:
        sections.append(_next(explanation, explanation.target))
    lead = [tag("style", Html(STYLE + _steps())), *(paragraph(note, class_="note") for note in explanation.notes)]
    count = f"{len(explanation.samples)} images" if several else explanation.samples[0].name
    title = f"{explanation.model}: {count}"
    foot = "All numbers are in numbers.json beside this page; every image is there as a PNG file."
    return render_page(title, sections, kind="Explanation", lead=Html("".join(lead)), foot=foot)


def _next(explanation: Explained, target: str) -> Section:
    """Return the next commands."""
    place, image = shlex.quote(target), explanation.samples[0].pixels is not None
    commands = {f"saccade explain {place} FOLDER": "a whole folder of images"} if image else {}
    if image and explanation.against is None:
        commands[f"saccade explain {place} IMAGE.jpg --against OTHER_RUN"] = "beside another model"
    commands[f"saccade evaluate {place}"] = "its accuracy, with intervals"
    commands[f"saccade serve {place}"] = f"a web page to try it on {'images' if image else 'texts'}"
    return next_section(commands)


def _charts_alone(view: View) -> bool:
    """Whether a view has only charts, which are for experts."""
    return all(figure.pixels is None for figure in view.figures)


def _names(samples: Sequence[ExplainedSample]) -> list[str]:
    """Return the images' names, numbered if they are not unique."""
    names = [sample.name for sample in samples]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]


def _steps() -> str:
    """Return CSS that shows the selected panel, without scripts."""
    rules = (f".layers>input:nth-of-type({n}):checked~.panels>figure:nth-of-type({n})" for n in range(1, STEPS + 1))
    return f"{','.join(rules)}{{display:block}}"


def _head(explanation: Explained, sample: ExplainedSample) -> Html:
    parts = []
    if sample.pixels is not None:
        seen = f"{sample.name}, as the model saw it"
        parts.append(tag("div", encode_image(sample.pixels, alt=seen, largest=256, smallest=224)))
    if sample.rows:
        body = _answer(sample.rows, explanation.model, explanation.outputs, sample.said)
    elif sample.said is not None:
        body = paragraph(f"{explanation.model} predicts: {sample.said.text}. The views show its features.")
    else:
        body = paragraph("The model makes no prediction for the whole image; the views show its features.")
    against = explanation.against or "the other model"
    other = _answer(sample.other_rows, against, explanation.outputs, sample.other_said) if sample.other_rows else None
    return tag("div", *parts, tag("div", body, other), class_="answer")


def _answer(answer: Rows, name: str, outputs: str, prediction: Answer | None) -> Html:
    """Render an answer, with bars for probabilities."""
    rows: list[list[Html | str]] = []
    shares = any(share is not None for _, _, share in answer)
    for label, text, share in answer:
        bar = Html("")
        if share is not None:  # no interval for a single prediction
            bar = tag("div", strip(math.nan, share, math.nan, x_range=(0, 1), bar=True), class_="share")
        rows.append([label, bar, text] if shares else [label, text])
    covers = prediction is not None and prediction.mask is not None
    head = [SINGULAR.get(outputs, "Output")]
    head += ["", "Covers" if covers else "Probability"] if shares else ["Answer"]
    caption = f"What {name} answers"
    if prediction is not None and shares and outputs != "classes":  # for classes, the first is the answer
        caption += f": {prediction.text}"
    return table(head, rows, caption=caption, numeric=(len(head) - 1,))


def _render_view(view: View, scope: str, above: set[tuple[str, str]], *, folded: bool) -> Html:
    """Render a view's text and figures, with a row of buttons for several layers.

    Args:
        scope: prefix of its buttons' names.
        above: keys and texts of earlier views; texts are not repeated.
        folded: fold figures with only charts.
    """
    layered = [figure for figure in view.figures if figure.depth is not None]
    if len(layered) < 2 or len(layered) > STEPS:
        layered = []
    plain = [figure for figure in view.figures if figure not in layered]
    parts = [] if (view.key, view.about) in above else [paragraph(view.about)]
    if layered:
        parts.append(_slider(layered, f"{scope}-{view.key}"))
    charts = [figure for figure in plain if figure.pixels is None] if folded else []
    drawn = [_figure(figure) for figure in plain if figure not in charts]
    parts += [tag("div", *drawn, class_="row")] if view.row else drawn
    if charts:
        parts.append(fold("Charts" if len(charts) > 1 else "Chart", *(_figure(figure) for figure in charts)))
    return Html("".join(parts))


def _slider(figures: Sequence[Figure], name: str) -> Html:
    last = len(figures) - 1
    buttons = []
    for place, figure in enumerate(figures):
        key = f"{name}-{place}"
        button = tag("input", type="radio", name_=name, id=key, checked=place == last, aria_label=figure.layer)
        buttons.append(Html(button.removesuffix("</input>")))
        buttons.append(tag("label", str((figure.depth or 0) + 1), for_=key, title=figure.layer))
    panels = tag("div", *(_figure(figure) for figure in figures), class_="panels")
    return tag("fieldset", tag("legend", "Layer, from the first to the last"), *buttons, panels, class_="layers")


def _figure(figure: Figure) -> Html:
    image = None
    if figure.pixels is not None:
        image = encode_image(figure.pixels, alt=figure.caption, largest=WIDEST, smallest=224)
    return tag("figure", tag("figcaption", figure.caption), image, figure.chart, class_="shown")


def _absent(views: Sequence[View]) -> Html:
    absent = [view for view in views if view.absent is not None]
    rows = [tag("li", tag("strong", view.title), ": ", view.absent) for view in absent]
    return (
        fold(f"{'; '.join(view.title for view in absent)}: why they are not shown", tag("ul", *rows))
        if absent
        else Html("")
    )
