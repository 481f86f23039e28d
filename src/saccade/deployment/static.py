"""The page's files, read once from the package: no name in a request ever becomes a path."""

from importlib import resources

from ..report.heat import heat_css

FILES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/main.js": ("main.js", "text/javascript"),
    "/page/ask.js": ("ask.js", "text/javascript"),
    "/page/picker.js": ("picker.js", "text/javascript"),
    "/page/views.js": ("views.js", "text/javascript"),
    "/page/runs.js": ("runs.js", "text/javascript"),
    "/page/build.js": ("build.js", "text/javascript"),
    "/page/masks.js": ("masks.js", "text/javascript"),
    "/page/docs.js": ("docs.js", "text/javascript"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page/report.css": ("", "text/css"),  # the look of reports, which the page shares
}


def read_files() -> dict[str, tuple[str, bytes]]:
    """Return type and content of every file, by its path on the server."""
    folder = resources.files("saccade.deployment") / "page"
    found = {path: (kind, (folder / name).read_bytes()) for path, (name, kind) in FILES.items() if name}
    style = (resources.files("saccade.report") / "page.css").read_text(encoding="utf-8") + heat_css()
    return {**found, "/page/report.css": ("text/css", style.encode())}
