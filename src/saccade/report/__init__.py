"""Self-contained HTML pages with charts, tables and images."""

from .chart import Point, line_chart, scatter
from .heat import heat_map
from .image import encode_image, png_uri
from .markup import Html, escape, tag
from .page import Section, facts, fold, grid, paragraph, render_page, table
from .rows import Interval, interval_chart, strip

__all__ = [
    "Html",
    "Interval",
    "Point",
    "Section",
    "encode_image",
    "escape",
    "facts",
    "fold",
    "grid",
    "heat_map",
    "interval_chart",
    "line_chart",
    "paragraph",
    "png_uri",
    "render_page",
    "scatter",
    "strip",
    "table",
    "tag",
]
