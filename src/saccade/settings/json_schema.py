"""JSON Schema of recipes and of a run's `config.yaml`, by which editors complete and check them."""

import json
from typing import Any

from pydantic import TypeAdapter

from .schema import TrainConfig

# Keys of a recipe beside settings.
OF_RECIPES = {
    "variants": "patterns of model names, each with settings for these models",
    "families": "name of a file of settings for families of models",
    "grid": "settings by name, each with the values that `saccade tune` tries",
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of all settings, nested as in a recipe."""
    tree = TypeAdapter(TrainConfig).json_schema()
    more: dict[str, Any] = {
        name: {"type": ["string", "null"] if name == "families" else "object", "description": text}
        for name, text in OF_RECIPES.items()
    }
    more["variants"]["additionalProperties"] = {"$ref": "#"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **tree,
        "title": "saccade settings",
        "properties": {**tree["properties"], **more},
        "patternProperties": {r"\.": {"description": "a setting by its dotted name"}},
    }


if __name__ == "__main__":
    print(json.dumps(json_schema()))  # what schema.json holds
