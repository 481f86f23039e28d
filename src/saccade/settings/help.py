"""Help of settings, from the JSON Schema in the package: light enough for `--help`."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _schema() -> Any:
    return json.loads((Path(__file__).parent / "schema.json").read_bytes())


def help_of(name: str, *, default: str | None = None) -> str:
    """Return the help of a setting's flag, with what holds where it is not given.

    Args:
        default: instead of the setting's own words for that; empty for none.
    """
    place, (*groups, last) = _schema(), name.split(".")
    for group in groups:
        place = _schema()["$defs"][place["properties"][group]["$ref"].rpartition("/")[2]]
    about = place["properties"][last]
    unset = about.get("unset", "") if default is None else default
    return f"{about['description']} (default: {unset})" if unset else str(about["description"])
