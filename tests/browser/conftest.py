import shutil
from pathlib import Path

import pytest

from support.serving import BAD_NAME, CLASSES, Brightness, make_app, running

AXE = Path(__file__).parent / ".cache" / "package" / "axe.min.js"


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "one").mkdir()
    (folder / "one" / "config.yaml").write_text("")
    (folder / "one" / "summary.json").write_text('{"val_top1": 0.875, "epochs": 3, "data": "images"}')
    (folder / "one" / "report.html").write_text(
        "<!DOCTYPE html><title>r</title><h1>The report of one</h1><script>parent.document.title='broken into'</script>"
    )
    return folder


@pytest.fixture(scope="session")
def address(runs):
    bad = (BAD_NAME, *CLASSES[1:])
    with running(make_app(Brightness("first"), Brightness("second", classes=bad), browse=[runs])) as address:
        yield address


@pytest.fixture(scope="session")
def browser(address):  # its pages may be asking until it is gone, so it goes before the server does
    webdriver = pytest.importorskip("selenium.webdriver", reason="install the dev extra: pip install -e '.[dev]'")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium and chromedriver are not installed; run tests/browser/setup.sh")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        "--window-size=1200,1000",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture(scope="session")
def axe():
    if not AXE.exists():
        pytest.skip("axe-core is not there; run tests/browser/setup.sh")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture
def page(browser, address):
    """The page, just opened, in a wide window; nothing may have been written to the console at the end."""
    from support.page import Page

    opened = Page(browser, address)
    opened.open()
    opened.one("#second option:nth-child(1)").click()  # two models are compared from the start; most tests ask one
    yield opened
    assert opened.console() == []
