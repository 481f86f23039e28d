"""The page as its tests hold it: keys, drops and what can be read."""

import base64

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
const file = new File([bytes], arguments[1], {type: arguments[2]});
const data = new DataTransfer();
data.items.add(file);
const target = arguments[3] === 'drop' ? document.getElementById('drop') : document.body;
const event = arguments[3] === 'drop'
  ? new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})
  : new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true});
target.dispatchEvent(event);
"""
SECONDS = 30


class Page:
    """The page in a browser."""

    def __init__(self, browser, address):
        self.browser, self.address = browser, address

    def open(self, width=1200, height=1000, scheme="light", path="/"):
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        self.browser.get_log("browser")  # of pages before
        self.browser.get(self.address + path)
        if path == "/":
            self.until(lambda: self.all("#first option") and "Looking" not in self.text("#run-list"))

    def all(self, css):
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def one(self, css):
        return self.browser.find_element(By.CSS_SELECTOR, css)

    def text(self, css):
        return self.one(css).text

    def until(self, condition):
        return WebDriverWait(self.browser, SECONDS, 0.02).until(lambda _: condition())

    def give(self, data, *, name="image.png", kind="image/png", way="drop"):
        """Drop or paste a file."""
        self.browser.execute_script(DROP, base64.b64encode(data).decode(), name, kind, way)

    def answered(self):
        """Wait for answers and views; return the answers' texts."""
        self.until(lambda: "views are below" in self.text("#status"))
        return [one.text for one in self.all(".answer")]

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def tab_to(self, css, most=60):
        """Press Tab until an element has the focus."""
        for _ in range(most):
            self.press(Keys.TAB)
            if self.browser.execute_script("return document.activeElement.matches(arguments[0])", css):
                return
        raise AssertionError(f"Tab does not reach {css}")

    def faults(self, axe):
        """Return what axe-core finds wrong."""
        if not self.browser.execute_script("return !!window.axe"):
            self.browser.execute_script(axe)
        found = self.browser.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {iframes: false}).then((r) => done(r.violations), (e) => done([{id: String(e)}]));"
        )
        return [(one["id"], [node.get("html", "")[:200] for node in one.get("nodes", [])]) for one in found]

    def console(self):
        """Return what the browser complained of, but for refusals that a test provoked."""
        lines = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] != "DEBUG"]
        return [line for line in lines if "the server responded with a status of 4" not in line]
