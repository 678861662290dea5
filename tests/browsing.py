"""A real Chromium for tests, and pictures of what it shows.

Pictures lie in the test's temporary folder, or where a person wants them: SHOAL_TEST_PICTURES=/tmp/look pytest ...
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageStat
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

from waiting import wait_until

ENTER, ESCAPE, END = "\ue007", "\ue00c", "\ue010"
_FLAGS = ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
          "disable-component-update", "disable-sync", "disable-dev-shm-usage", "hide-scrollbars")  # fmt: skip


class Browser:
    """One window of 1280x800, with what the tests ask of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Also forget what an earlier page told the console, such as that its server is gone."""
        self.driver.get("about:blank")
        self.complaints()
        self.driver.get(address)

    def js(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def text(self, selector: str = "body") -> str:
        return str(self.js(f"document.querySelector({selector!r}).innerText"))

    def press(self, *keys: str) -> None:
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()

    def wait(self, expression: str, what: str, deadline_s: float = 60) -> None:
        wait_until(lambda: self.js(expression), deadline_s, what)

    @contextmanager
    def frame(self, name: str) -> Iterator[None]:
        self.driver.switch_to.frame(name)
        yield
        self.driver.switch_to.default_content()

    def body(self) -> str:
        """The text of the frame's page; empty while that is being loaded."""
        try:
            return str(self.driver.find_element("tag name", "body").text)
        except (NoSuchElementException, StaleElementReferenceException):
            return ""

    def complaints(self) -> list[str]:
        """What the browser told its console since it was last asked.

        The frame of the report may hold no script, and the browser says so whenever the driver looks into it.
        """
        return [one["message"] for one in self.driver.get_log("browser") if "sandboxed" not in one["message"]]

    @contextmanager
    def scrollbars(self, width: int) -> Iterator[None]:
        """Scrollbars that take so many pixels of the pages opened from now on: 15 on a desktop, 0 on a phone."""
        style = f"::-webkit-scrollbar {{ width: {width}px; height: {width}px }}"
        add = f"sheet.replaceSync({style!r}); document.adoptedStyleSheets.push(sheet)"
        script = f"(sheet => {{ {add} }})(new CSSStyleSheet())"
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    @contextmanager
    def window(self, width: int, height: int, *, dark: bool = False, media: str = "screen") -> Iterator[None]:
        """As on a device of this size, whose owner prefers bright or dark; or as it is laid out for paper ("print")."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": colours})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})

    def paper(self) -> bytes:
        """The page as PDF, A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", size)["data"])


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    driver, program = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or program is None:
        pytest.fail("the browser tests need Chromium: apt-get install chromium chromium-driver", pytrace=False)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in (*_FLAGS, "window-size=1280,800", f"user-data-dir={profile}"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(found)
    finally:
        found.quit()


class Album:
    """Takes pictures, keeps them for people to look at, and holds each to what any picture of ours must be."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder = browser, Path(os.environ.get("SHOAL_TEST_PICTURES") or folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def take(self, name: str, *, dark: bool = False) -> None:
        """A picture of the window: of its size, with something on it, dark or bright, and nothing beyond its edge.

        What was asked of the page may be drawn a moment later, so it is looked at again until a deadline.
        """
        path = self.folder / f"{name}.png"
        wrong = ["nothing was drawn"]

        def is_good() -> bool:
            self.browser.driver.save_screenshot(str(path))
            wrong[:] = self._wrong_with(Image.open(path).convert("RGB"), dark)
            return not wrong

        try:
            wait_until(is_good, 60, "a good picture")
        except AssertionError:
            raise AssertionError(f"{path}: {', '.join(wrong)}") from None

    def _wrong_with(self, picture: Image.Image, dark: bool) -> Iterator[str]:
        width, height = self.browser.js("[innerWidth, innerHeight]")
        if picture.size != (width, height):
            yield f"it is {picture.size} large, not {width}x{height}"
        colours = picture.getcolors(picture.width * picture.height) or []
        if len(colours) <= 20:
            yield f"it has {len(colours)} colours"
        brightness = ImageStat.Stat(picture.convert("L")).mean[0]
        if not (brightness < 70 if dark else brightness > 200):
            yield f"its mean brightness is {brightness:.0f}"
        wide = "[...document.querySelectorAll('html, #pane')].filter(one => one.scrollWidth > one.clientWidth).length"
        if self.browser.js(wide):
            yield "something is wider than its place"
