"""Masks on the page, driven in a real browser: which classes are shown, and how strongly."""

import io

import pytest
from PIL import Image

from saccade.data.spec import InputSpec
from saccade.tasks import Segment
from saccade.tasks.segmentation.drawing import palette
from support.serving import BAD_NAME, Brightness, make_app, running

pytest.importorskip("selenium")

CLASSES = ("red", BAD_NAME, "blue")
PIXEL = """
const copy = document.createElement('canvas');
const pen = copy.getContext('2d', { willReadFrequently: true });
pen.drawImage(document.querySelector('.masked canvas'), -arguments[0], -arguments[1]);
return [...pen.getImageData(0, 0, 1, 1).data];
"""


class Colours(Brightness):
    """Tells each pixel by its strongest channel."""

    task, img_size = Segment, 32

    def __init__(self):
        spec = InputSpec(CLASSES, 3, 32, [0.5] * 3, [0.5] * 3, task="segment", extra={"fit": True})
        super().__init__("colours", classes=CLASSES, spec=spec)

    def rows(self, images):
        return images.argmax(1).short().numpy()

    def about(self):
        return {**super().about(), "task": "segment"}


@pytest.fixture
def masks(browser):
    """The page after an image whose left half is red and whose right half is green."""
    from support.page import Page

    image = Image.new("RGB", (64, 40), (200, 0, 0))
    image.paste((0, 200, 0), (32, 0, 64, 40))
    file = io.BytesIO()
    image.save(file, "PNG")
    with running(make_app(Colours(), explained=False)) as address:
        page = Page(browser, address)
        page.open()
        page.give(file.getvalue())
        page.until(lambda: len(page.all("fieldset.classes input")) == 2)
        yield page
        assert page.console() == []


def test_mask_lies_over_the_image_in_the_colours_of_its_classes(masks):
    canvas = masks.one(".masked canvas")
    assert (canvas.get_attribute("width"), canvas.get_attribute("height")) == ("64", "40")
    image = masks.one(".masked img").rect
    assert canvas.rect == pytest.approx(image, abs=1)
    red, green, _ = palette(3)
    assert masks.browser.execute_script(PIXEL, 5, 20) == [*red, 255]
    assert masks.browser.execute_script(PIXEL, 60, 20) == [*green, 255]
    assert [one.text for one in masks.all("fieldset.classes label")] == ["red", BAD_NAME]  # blue is nowhere


def test_class_that_is_unticked_is_not_shown(masks):
    first, second = masks.all("fieldset.classes input")
    first.click()
    assert masks.browser.execute_script(PIXEL, 5, 20)[3] == 0
    assert masks.browser.execute_script(PIXEL, 60, 20)[3] == 255
    second.click()
    first.click()
    assert masks.browser.execute_script(PIXEL, 5, 20)[3] == 255
    assert masks.browser.execute_script(PIXEL, 60, 20)[3] == 0


def test_slider_says_how_strongly_the_mask_is_shown(masks):
    slider = masks.one(".slider input[type=range]")
    opacity = "return getComputedStyle(document.querySelector('.masked canvas')).opacity"
    assert masks.browser.execute_script(opacity) == "0.55"
    slider.send_keys("\ue011")  # home
    assert (masks.browser.execute_script(opacity), masks.text(".slider output")) == ("0", "0%")
    slider.send_keys("\ue010")  # end
    assert (masks.browser.execute_script(opacity), masks.text(".slider output")) == ("1", "100%")
    slider.send_keys("\ue012")  # left arrow
    assert slider.get_attribute("aria-valuetext") == "95%"


def test_page_of_a_mask_is_accessible(masks, axe):
    assert masks.faults(axe) == []
