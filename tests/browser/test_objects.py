"""Objects on the page, driven in a real browser: how sure they have to be, and which classes are shown."""

import io

import numpy as np
import pytest
from PIL import Image

from saccade.data.spec import InputSpec
from saccade.tasks import Detect
from saccade.tasks.segmentation.drawing import palette
from support.serving import BAD_NAME, Brightness, make_app, running

pytest.importorskip("selenium")

CLASSES = ("cell", BAD_NAME, "never")
SIDE, CELLS = 64, 14
PIXEL = """
const pen = document.querySelector('.objects canvas').getContext('2d');
return [...pen.getImageData(arguments[0], arguments[1], 1, 1).data];
"""


class Fixed(Brightness):
    """Finds the same three objects in every image: two of one class, one of another, which is unsure."""

    task, img_size = Detect, SIDE

    def __init__(self):
        extra = {"fit": True, "masks": True}
        spec = InputSpec(CLASSES, 3, SIDE, [0.5] * 3, [0.5] * 3, task="detect", extra=extra)
        super().__init__("fixed", classes=CLASSES, spec=spec)

    def rows(self, images):
        rows = np.zeros((len(images), 4, 6 + CELLS**2), np.float32)
        rows[..., 6:] = 1.0  # masks that fill their boxes, but for the right half of the first one
        rows[:, 0, 6:].reshape(-1, CELLS, CELLS)[:, :, CELLS // 2 :] = 0.0
        rows[:, 0, :6] = [4, 20, 28, 40, 0.9, 0]
        rows[:, 1, :6] = [32, 20, 44, 32, 0.7, 1]
        rows[:, 2, :6] = [48, 20, 60, 32, 0.3, 1]
        rows[:, 3, 5] = -1
        return rows

    def about(self):
        return {**super().about(), "task": "detect"}


@pytest.fixture
def objects(browser):
    """The page after an image twice as wide as high: 128 x 64 pixels, its boxes twice those of the model's square."""
    from support.page import Page

    file = io.BytesIO()
    Image.new("RGB", (128, 64), (90, 90, 90)).save(file, "PNG")
    with running(make_app(Fixed(), explained=False)) as address:
        page = Page(browser, address)
        page.open()
        page.give(file.getvalue())
        page.until(lambda: len(page.all("fieldset.classes input")) == 2)
        yield page
        assert page.console() == []


def painted(page, x, y):
    """The colour at a place of the image, None where nothing is drawn."""
    *colour, alpha = page.browser.execute_script(PIXEL, 8 * x, 8 * y)
    return colour if alpha else None


def labels(page):
    return [one.text for one in page.all("fieldset.classes label")]


def test_boxes_and_masks_lie_on_the_image(objects):
    canvas, image = objects.one(".objects canvas"), objects.one(".objects img")
    assert (canvas.get_attribute("width"), canvas.get_attribute("height")) == ("1024", "512")
    assert canvas.rect == pytest.approx(image.rect, abs=1)
    assert image.rect["width"] >= 320  # a small image is enlarged
    first, second, _ = palette(3)
    assert painted(objects, 55.8, 20) == pytest.approx(first, abs=2)  # the right edge of the first box
    assert painted(objects, 20, 30) == pytest.approx(first, abs=4)  # its mask's left half
    assert painted(objects, 46, 30) is None  # its mask's right half
    assert painted(objects, 76, 20) == pytest.approx(second, abs=4)
    assert painted(objects, 108, 20) is None  # not sure enough
    assert labels(objects) == ["cell 1", f"{BAD_NAME} 1"]


def test_slider_says_how_sure_an_object_has_to_be(objects):
    slider = objects.one(".slider input[type=range]")
    assert objects.text(".slider output") == "50%"
    slider.send_keys("\ue011")  # home
    assert objects.text(".slider output") == "5%"
    assert painted(objects, 108, 20) is not None
    assert labels(objects) == ["cell 1", f"{BAD_NAME} 2"]
    slider.send_keys("\ue010")  # end
    assert painted(objects, 20, 30) is None
    assert labels(objects) == ["cell 0", f"{BAD_NAME} 0"]
    assert slider.get_attribute("aria-valuetext") == "0 objects shown, at least 100% sure"


def test_class_that_is_unticked_is_not_shown(objects):
    first, _ = objects.all("fieldset.classes input")
    first.click()
    assert painted(objects, 20, 30) is None
    assert painted(objects, 76, 20) is not None
    first.click()
    assert painted(objects, 20, 30) is not None


@pytest.mark.parametrize("width", [1200, 400])
def test_page_of_objects_fits_its_window(objects, width):
    objects.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    wide = objects.browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    assert objects.one(".objects canvas").rect == pytest.approx(objects.one(".objects img").rect, abs=1)


def test_page_of_objects_is_accessible(objects, axe):
    assert objects.faults(axe) == []
