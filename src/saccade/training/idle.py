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
NORMALIZED = {  # by the normalisation that uses them; that of each pooling where none is given
    "num_iter": ("svpn", "isqrt"),
    "num_sv": ("svpn",),
    "start": ("svpn",),
    "alpha": ("svpn", "svpn_exact", "power"),
    "positive": ("sqrt_t",),
    "epn_axis": ("epn",),
}
NORMALIZATIONS = {"mgcrp": "svpn", "gcp": "isqrt"}
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


def idle_options(model: ModelConfig, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence on the options of the model, and of its plug-ins, that have no effect beside the others.

    Args:
        recipe: settings of the recipe by dotted name, whose own options are left alone.

    Returns:
        By setting, "model.options" or "model.plugins"; a setting without such options is left out.
    """
    known, found = recipe["model.options"], dict[str, str]()
    own = {name: value for name, value in model.options.items() if (name, value) not in known.items()}
    for needs in (needs for pattern, needs in MODELS.items() if fnmatchcase(model.name, pattern)):
        for name, why in _idle({**model.options}, needs):
            if name in own:
                found["model.options"] = f"model.options.{name} = {short(repr(own[name]))} was given, but {why}"
    for text in model.plugins:
        if text in recipe["model.plugins"] or name_of(text) not in PLUGINS:
            continue
        for _, why in _idle(parse_plugin(text)[1], PLUGINS[name_of(text)]):
            found["model.plugins"] = f"the plug-in {short(repr(text))} was given, but {why}"
    return found


def _idle(options: Mapping[str, Any], needs: tuple[Needs, ...]) -> Iterator[tuple[str, str]]:
    """Yield the options without effect, each with the reason and what to do."""
    if needs is SECOND_ORDER:
        pooling = options.get("pooling", "mgcrp")
        default = NORMALIZATIONS.get(pooling, "")
        needs += tuple(Needs(name, "normalization", values, default) for name, values in NORMALIZED.items())
    for one in needs:
        value = options.get(one.other, one.default)
        if one.option in options and value not in one.values:
            allowed = " or ".join(one.values)
            yield (
                one.option,
                f"{one.option} has no effect with {one.other}={value}: it is only used with {one.other}={allowed}; "
                f"leave it out, or give that {one.other}",
            )
