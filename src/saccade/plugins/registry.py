"""Plug-ins by the names they have on the command line; other packages add theirs by the entry points `saccade.plugins`.

A plug-in is one of two kinds: a class with `install`, which `attach` puts onto a model, or a task around another one or
in its place (`saccade.tasks.auxiliary`).
"""

from typing import Any

from ..settings.registry import Registry

PLUGINS: Registry[Any] = Registry(
    "plug-in", group="saccade.plugins", home=("saccade.plugins", "saccade.tasks.auxiliary")
)
register_plugin = PLUGINS.register
