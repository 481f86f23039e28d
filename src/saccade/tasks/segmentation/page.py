"""What the page of a segmentation run shows."""

from ..page import Page


class SegmentationPage(Page):
    """Sections on masks."""
