"""The registry of plug-ins; other packages add theirs by the entry point group `saccade.plugins`.

A plug-in is either a class with `install`, which `attach` adds to a model, or a task that wraps or replaces another one
(`saccade.tasks.auxiliary`).
"""

from typing import Any

from ..settings.registry import Registry

PLUGINS: Registry[Any] = Registry(
    "plug-in", group="saccade.plugins", home=("saccade.plugins", "saccade.tasks.auxiliary")
)
register_plugin = PLUGINS.register
