"""The page of an evaluation: runs side by side, metrics with intervals."""

import shlex
from dataclasses import replace

from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, next_section, paragraph, render_page, table
from ..report.rows import Interval, interval_chart
from ..statistics.bootstrap import ResampledDifference, fewer
from ..tasks.registering import TASKS
from .classes.page import ABOUT, attack_section, calibration_section, class_section, class_sentence
from .findings import Findings
from .page_parts import (
    MAX_NAME,
    change,
    change_interval,
    corruption_section,
    interval_text,
    is_sure,
    noise_section,
    number_cell,
    number_table,
    occlusion_section,
)
from .robust import mean_name


def render(result: Findings) -> str:
    """Render an evaluation as a self-contained page."""
    robust = bool(result.settings["robust"])
    found: list[Section | None] = [
        _difference_section(result),
        corruption_section(result) if robust else None,
        occlusion_section(result) if robust else None,
        noise_section(result) if any(name.startswith("noise.") for name in result.run().metrics) else None,
        attack_section(result) if robust else None,
        calibration_section(result),
        class_section(result),
        *_task_sections(result),
        _method_section(result),
        _next(result),
    ]
    names = ", ".join(shorten(name, MAX_NAME) for name in result.runs)
    return render_page(
        f"{names} on {shorten(result.data, 120)}",
        [section for section in found if section is not None],
        kind="Evaluation",
        lead=_lead(result),
        foot=f"Written by saccade; every number is in evaluation.json. Seed {result.settings['seed']}.",
    )


def _task_sections(result: Findings) -> list[Section]:
    """Return the task's sections for every run, with the run's name if there are several."""
    several = len(result.runs) > 1
    return [
        replace(one, key=f"{one.key}-{number}", title=f"{one.title}: {shorten(run.name, MAX_NAME)}") if several else one
        for number, run in enumerate(result.runs.values(), 1)
        for one in run.sections
    ]


def _next(result: Findings) -> Section:
    place = shlex.quote(result.run().target)
    reads = TASKS.find(result.task).reader.reads
    explained = {
        "image": {f"saccade explain {place} IMAGE.jpg": "where the model looks in an image"},
        "text": {f'saccade explain {place} "A text."': "which words counted"},
    }
    all_of_them = " ".join(shlex.quote(run.target) for run in result.runs.values())
    others = {} if len(result.runs) > 1 else {f"saccade evaluate {place} OTHER_RUN": "side by side with another run"}
    served = {
        f"saccade serve {all_of_them}": "a web page to try them" if len(result.runs) > 1 else "a web page to try it"
    }
    commands = explained.get(reads, {}) | others | served
    if reads == "image" and not result.settings["robust"]:
        commands = {f"saccade evaluate {all_of_them} --robust": "also noise, occlusion and attacks"} | commands
    return next_section(commands)


def _lead(result: Findings) -> Html:
    rows = [(spec.title, metric, spec) for metric, spec in result.specs.items()]
    sizes = ["Parameters", *(f"{run.parameters / 1e6:.2f} million" for run in result.runs.values())]
    caption = f"{result.samples:,} samples; each number with its 95% confidence interval over samples of this kind"
    notes = [tag("li", shorten(note, 400)) for note in result.notes]
    return join(
        paragraph(class_sentence(result) if result.run().reliability else _sentence(result), class_="lead"),
        number_table(result, "Metric", rows, caption=caption, more=[sizes]),
        tag("ul", *notes, class_="note") if notes else None,
    )


def _sentence(result: Findings) -> str:
    """Return a sentence on the first run's result and the differences of others."""
    first, spec, mean = result.run(), result.primary, mean_name(result.primary.name)
    found = first.metrics[spec.name]
    text = f"{shorten(first.name, MAX_NAME)} reaches {spec.words} of {spec.show(found.value)}"
    text += f" ({interval_text(found, spec)})"
    if mean in first.metrics:
        text += f", and {spec.show(first.metrics[mean].value)} on corrupted samples"
    text += f". {'Higher' if spec.larger_is_better else 'Lower'} is better."
    for name in list(result.runs)[1:]:
        text += f" {shorten(name, MAX_NAME)}: {_verdict(result.difference(name), result)}."
    return text


def _verdict(found: ResampledDifference, result: Findings) -> str:
    spec = result.specs[found.metric]
    better = "better" if (found.value > 0) == spec.larger_is_better else "worse"
    sure = f"significantly {better}" if is_sure(found.low, found.high) else "no significant difference"
    return f"{change(found.value, spec)}, {sure} ({change_interval(found, spec)})"


def _difference_section(result: Findings) -> Section | None:
    others = list(result.runs)[1:]
    if not others:
        return None
    counted = any(found.p_value is not None for found in result.differences)
    about = (
        f"Compared with {shorten(result.reference, MAX_NAME)}, over the same samples. If an interval does not contain "
        "zero, the choice of samples alone is an unlikely explanation; another run of the same model may still "
        "differ."
    )
    about += " p is from McNemar's exact test, not corrected for the number of rows." if counted else ""
    show = _difference_chart if result.primary.share else _difference_table
    return Section("differences", "Differences", join(paragraph(about), *(show(result, name) for name in others)))


def _difference_chart(result: Findings, name: str) -> Html:
    """Return a chart of the differences of percentages, which share an axis."""
    rows = [
        Interval(spec.title, found.low, found.value, found.high, _counts(found))
        for metric, spec in result.specs.items()
        for found in result.differences
        if spec.share and found.run == name and found.metric == metric
    ]
    return interval_chart(
        rows,
        title=f"{shorten(name, MAX_NAME)} minus {shorten(result.reference, MAX_NAME)}",
        x_label="Difference in percentage points",
        name_label="Metric",
        value_label="Difference, 95% interval",
        remark_label="Correct in one run only",
        percent=True,
    )


def _difference_table(result: Findings, name: str) -> Html:
    """Return a table of differences in various units."""
    rows: list[list[Html | str]] = []
    for found in result.differences:
        if found.run == name and found.metric in result.specs:
            spec = result.specs[found.metric]
            text = number_cell(change(found.value, spec), change_interval(found, spec))
            rows.append([spec.title, text, "higher" if spec.larger_is_better else "lower"])
    return table(
        ["Metric", "Difference, 95% interval", "Better when"],
        rows,
        caption=f"{shorten(name, MAX_NAME)} minus {shorten(result.reference, MAX_NAME)}",
        numeric=(1,),
    )


def _method_section(result: Findings) -> Section:
    resamples = result.settings["resamples"]
    some, least = (fewer(result.samples, resamples, condition=one) for one in (False, True))
    whole = [spec.words for spec in result.specs.values() if spec.statistic is not None]
    lines = [
        f"Intervals: 95% percentile bootstrap with {resamples:,} resamples of the samples, the same for every run "
        "and metric, so that differences are paired. If all samples agree, Wilson's interval.",
        f"Metrics that are not means over samples ({', '.join(whole)}) are computed for the first {some:,} "
        f"resamples, and under perturbations for the first {least:,}."
        if whole and least < resamples
        else "",
        "They cover other samples of the same kind, not other runs of the same model.",
        ABOUT if result.run().reliability else "",
        "Corruptions are drawn from the seed and the name of the sample, on 8-bit values; the kinds follow "
        "ImageNet-C, in an independent implementation.",
        f"Samples: {result.data}, fingerprint {result.fingerprint[:12]}.",
    ]
    return Section("method", "How it was measured", tag("ul", *(tag("li", line) for line in lines if line)))


def _counts(found: ResampledDifference) -> str:
    if found.p_value is None:
        return ""
    p = f"p = {found.p_value:.3f}" if found.p_value >= 0.001 else "p < 0.001"
    return f"{found.gained:,} against {found.lost:,}, {p}"
