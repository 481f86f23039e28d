"""Options of models and plug-ins that do nothing beside others: with them, two arms would train one network."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ..building.build import parse_plugin
from ..settings import ModelConfig, short
from ..settings.named import name_of


class Needs(NamedTuple):
    """An option that is only used where another one has certain values."""

    option: str
    other: str
    values: tuple[str, ...]
    default: str  # of the other option


GLMIX = (
    Needs("kmeans_iterations", "clustering", ("kmeans",), "soft"),
    Needs("slot_scale", "clustering", ("soft",), "soft"),
    Needs("kernel_size", "local", ("conv",), "conv"),
    Needs("window_size", "local", ("window",), "conv"),
)
NORMALIZED = {  # by the pooling; others take no normalization
    "mgcrp": (
        Needs("num_iter", "normalization", ("svpn",), "svpn"),
        Needs("num_sv", "normalization", ("svpn",), "svpn"),
        Needs("start", "normalization", ("svpn",), "svpn"),
        Needs("alpha", "normalization", ("svpn", "svpn_exact"), "svpn"),
        Needs("positive", "normalization", ("sqrt_t",), "svpn"),
        Needs("epn_axis", "normalization", ("epn",), "svpn"),
    ),
    "gcp": (
        Needs("num_iter", "normalization", ("isqrt",), "isqrt"),
        Needs("alpha", "normalization", ("power",), "isqrt"),
    ),
}
SECOND_ORDER = (
    Needs("late", "fusion", ("late",), "sum"),
    Needs("hidden_dim", "pooling", ("fc",), "mgcrp"),
)
LOCALIZATION = (
    Needs("ramp_epochs", "schedule", ("triangle",), "triangle"),
    Needs("prior", "loss", ("gaussian",), "l1"),
    Needs("prior_on", "loss", ("gaussian",), "l1"),
    Needs("unit", "loss", ("l1",), "l1"),
)
MODELS = {"glnet_*": GLMIX, "sot_*": SECOND_ORDER}
PLUGINS = {"second_order": SECOND_ORDER, "drloc": LOCALIZATION}


def idle_options(asked: ModelConfig, resolved: ModelConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence on each option of the model, and on each plug-in, without effect beside the other options.

    Args:
        asked: settings before they were resolved, whose options are judged.
        resolved: settings with the options of a checkpoint, beside which they are judged.
        recipe: settings of the recipe by dotted name, whose own options are left alone.

    Returns:
        By dotted name, such as "model.options.slot_scale" or "model.plugins.drloc".
    """
    known, found = recipe["model.options"], dict[str, str]()
    own = {name: value for name, value in asked.options.items() if (name, value) not in known.items()}
    for needs in (needs for pattern, needs in MODELS.items() if fnmatchcase(resolved.name, pattern)):
        for name, why in _idle(resolved.options, needs):
            if name in own:
                found[f"model.options.{name}"] = f"model.options.{name} = {short(repr(own[name]))} was given, but {why}"
    for text in asked.plugins:
        if text in recipe["model.plugins"] or name_of(text) not in PLUGINS:
            continue
        name, options = parse_plugin(text)
        if reasons := [why for _, why in _idle(options, PLUGINS[name])]:
            found[f"model.plugins.{name}"] = f"the plug-in {short(repr(text))} was given, but {'; '.join(reasons)}"
    return found


def _idle(options: Mapping[str, Any], needs: tuple[Needs, ...]) -> Iterator[tuple[str, str]]:
    """Yield the options without effect, each with the reason and what to do."""
    if needs is SECOND_ORDER:
        needs += NORMALIZED.get(options.get("pooling", "mgcrp"), ())
    for one in needs:
        value = options.get(one.other, one.default)
        if one.option in options and value not in one.values:
            allowed = " or ".join(one.values)
            yield (
                one.option,
                f"{one.option} has no effect with {one.other}={value}: it is only used with {one.other}={allowed}; "
                f"leave it out, or give that {one.other}",
            )
