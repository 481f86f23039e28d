"""What `explain` returns: what a model did with pictures, and how it is written."""

from pathlib import Path

from .explained import ExplainedPictures
from .page import save_page


class Explanation(ExplainedPictures):
    """What a model did with pictures: see `ExplainedPictures`."""

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page, its pictures as PNG and its numbers; return the page's path.

        Args:
            folder: must not hold anything but an earlier explanation, and that only with `overwrite`.
            overwrite: take the place of an earlier explanation.
        """
        return save_page(self, Path(folder).expanduser(), overwrite=overwrite)
