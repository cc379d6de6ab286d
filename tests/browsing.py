"""A real browser for the tests of pages."""

import itertools
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: apt-get install chromium chromium-driver"
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root, which is what machines that run tests often are
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",  # a page that scrolls smoothly is not where it was asked to be at once
)
PHONE, DESKTOP = (390, 844), (1280, 900)

PATIENCE = 60  # seconds; a busy machine may take its time over a page
OPENINGS = itertools.count()

Browser = webdriver.Chrome


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def opened(browser: Browser, address: str, size: tuple[int, int] = DESKTOP, dark: bool = False) -> str:
    """Open the page afresh, in a window of this size, and say under which address.

    No two openings share an address: the driver may otherwise answer from the page that was there before, or from
    one that is half read, while it is being read again.
    """
    width, height = size
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    wish = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
    fresh = f"{address}?{next(OPENINGS)}"
    browser.get(fresh)
    there = "return location.href === arguments[0] && document.readyState === 'complete'"
    WebDriverWait(browser, PATIENCE).until(lambda driver: driver.execute_script(there, fresh))
    return fresh


def events(browser: Browser, method: str) -> list[dict[str, Any]]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [message for message in messages if message["method"] == method]


def fetches_nothing(browser: Browser, address: str) -> None:
    """The page opens without a warning, and asks for no other address."""
    address = opened(browser, address)
    assert browser.get_log("browser") == []
    sent = [event["params"] for event in events(browser, "Network.requestWillBeSent")]
    of_page = {event["request"]["url"] for event in sent if event["documentURL"] == address}  # not the empty tab's
    assert {url for url in of_page if not url.startswith("data:")} == {address}


def never_scrolls_sideways(browser: Browser, address: str, size: tuple[int, int], dark: bool) -> None:
    """The page is no wider than its window, whatever is folded out."""
    opened(browser, address, size, dark)
    for summary in browser.find_elements(By.TAG_NAME, "summary"):
        browser.execute_script("arguments[0].click()", summary)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert len(browser.get_screenshot_as_png()) > 10_000
