"""The pages of a study and of a network in a real browser: they open, cells open, tables sort, both fit a phone."""

import base64
import itertools
import json
import re
import shutil
from collections.abc import Iterator

import pandas as pd
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from lengthlens.analyses.page import TERMS, page
from lengthlens.analyses.page.inspection import inside_page
from lengthlens.analyses.study import Study
from lengthlens.inside.look import inspect
from lengthlens.models.by_hand import induction_by_hand
from lengthlens.tests.synthetic import synthetic_provenance, synthetic_study

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "needs a browser: apt-get install chromium chromium-driver"
pytestmark = [pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING), pytest.mark.slow]
HOSTILE = "<script>alert(1)</script>"
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


def fetches_nothing(browser: Browser, address: str) -> None:
    """The page opens without a warning, and asks for no other address."""
    address = opened(browser, address)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    of_page = {event["request"]["url"] for event in sent if event["documentURL"] == address}  # not the empty tab's
    assert {url for url in of_page if not url.startswith("data:")} == {address}


def never_scrolls_sideways(browser: Browser, address: str, size: tuple[int, int], dark: bool) -> None:
    """The page is no wider than its window, whatever is folded out."""
    opened(browser, address, size, dark)
    for summary in browser.find_elements(By.TAG_NAME, "summary"):
        browser.execute_script("arguments[0].click()", summary)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert len(browser.get_screenshot_as_png()) > 10_000


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """A small study, one of whose tasks has a name that would like to be more than a name."""
    study = synthetic_study(["copy", "parity-cot", "parity"], ["ideal", "lbpe", "relative", "rope"], 2)
    hostile = study[study["task"] == "parity-cot"]
    renamed = hostile.assign(task=HOSTILE, run=hostile["run"].str.replace("parity-cot", HOSTILE), reason="</script><b>")
    return pd.concat([study, renamed], ignore_index=True)


@pytest.fixture(scope="module")
def address(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "index.html"
    file.write_text(page(Study(table, synthetic_provenance(table))), encoding="utf-8")
    return file.as_uri()


def square(browser: Browser, task: str, scheme: str) -> WebElement:
    """The button of a cell."""
    return browser.find_element(By.CSS_SELECTOR, f"button.cell[aria-label^='{task} under {scheme}:']")


def panel(browser: Browser) -> str:
    return browser.find_element(By.ID, "panel").text


def column(browser: Browser, name: str, place: int) -> list[str]:
    """What a column of a table shows, from top to bottom."""
    return [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, f"#{name} tbody td:nth-child({place + 1})")]


def exact_match(table: pd.DataFrame, task: str, scheme: str, scale: int) -> list[float]:
    """What the table says, seed by seed."""
    chosen = (table["task"] == task) & (table["scheme"] == scheme) & (table["measure"] == "exact_match")
    return list(table[chosen & (table["scale"] == scale)].sort_values("seed")["value"])


def test_the_page_opens_in_peace_and_fetches_nothing(browser: Browser, address: str) -> None:
    fetches_nothing(browser, address)
    assert len(browser.find_elements(By.CSS_SELECTOR, "button.cell")) == 16


def test_a_term_opens_and_what_is_folded_is_there_on_paper(browser: Browser, address: str) -> None:
    opened(browser, address)
    term = browser.find_element(By.CSS_SELECTOR, ".lead button.term")
    term.click()
    definition = browser.find_element(By.CSS_SELECTOR, ".lead .definition").text
    assert definition == TERMS[term.text].replace("`", "") and term.get_attribute("aria-expanded") == "true"
    term.send_keys(Keys.ESCAPE)
    assert not browser.find_elements(By.CSS_SELECTOR, ".definition")
    folded = "return document.querySelectorAll('details:not([open])').length"
    before = browser.execute_script(folded)
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert before > 0 and browser.execute_script(folded) == 0
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(folded) == before


def test_a_hostile_name_is_text(browser: Browser, address: str) -> None:
    fresh = opened(browser, address)
    heads = [head.text for head in browser.find_elements(By.CSS_SELECTOR, "#matrix tbody th")]
    assert HOSTILE in heads
    square(browser, HOSTILE, "lbpe").click()
    assert HOSTILE in panel(browser) and "</script><b>" in panel(browser)
    browser.get(f"{fresh}#cell=%3Cscript%3Ealert(1)%3C%2Fscript%3E/ideal")  # a cell has an address
    assert f"{HOSTILE} under ideal" in panel(browser)
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 2  # the data and the page's own


def test_cells_open_by_click_and_key(browser: Browser, address: str, table: pd.DataFrame) -> None:
    opened(browser, address)
    square(browser, "copy", "relative").click()
    assert "copy under relative" in panel(browser) and "impossible" in panel(browser)
    at_twice = [f"{value:.3f}" for value in exact_match(table, "copy", "relative", 20)]
    assert column(browser, "seeds", 4) == at_twice
    curves = browser.find_elements(By.CSS_SELECTOR, "#panel .charts svg")
    assert len(curves) == 3
    assert len(curves[0].find_elements(By.CSS_SELECTOR, "path.line")) == 2  # one for each seed
    square(browser, "copy", "ideal").send_keys(Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert "copy under lbpe" in panel(browser) and "learned to attend to" in panel(browser)
    assert square(browser, "copy", "lbpe").get_attribute("aria-pressed") == "true"


def test_another_length_can_be_chosen(browser: Browser, address: str, table: pd.DataFrame) -> None:
    opened(browser, address)
    for multiple in (10, 2):
        browser.find_element(By.CSS_SELECTOR, f"input[value='{multiple}']").click()
        scores = exact_match(table, "copy", "lbpe", 10 * multiple)
        shown = float(square(browser, "copy", "lbpe").find_element(By.TAG_NAME, "b").text)
        assert shown == pytest.approx(sum(scores) / len(scores), abs=0.0051)


def test_a_click_on_a_header_sorts(browser: Browser, address: str) -> None:
    opened(browser, address)
    head = browser.find_element(By.CSS_SELECTOR, "#every-run thead th:nth-child(6)")
    for direction in ("ascending", "descending"):
        head.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
        assert head.get_attribute("aria-sort") == direction
        known = [float(text) for text in column(browser, "every-run", 5) if text != "–"]
        assert known == sorted(known, reverse=direction == "descending")


def test_the_page_never_scrolls_sideways_and_prints(browser: Browser, address: str) -> None:
    for size in (PHONE, DESKTOP):
        for dark in (False, True):
            never_scrolls_sideways(browser, address, size, dark)
    printed = base64.b64decode(browser.print_page())
    assert printed.startswith(b"%PDF") and len(printed) > 20_000


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "inside.html"
    seen = inspect(induction_by_hand(), train_max=6, scales=[4, 8], text="^ c a b d = a")
    file.write_text(inside_page(seen, HOSTILE, f"Inside {HOSTILE}", {"run": HOSTILE}), encoding="utf-8")
    return file.as_uri()


def test_the_page_of_a_network_fetches_nothing_and_fits_its_window(browser: Browser, inside: str) -> None:
    for size, dark in ((PHONE, True), (DESKTOP, False)):
        never_scrolls_sideways(browser, inside, size, dark)
    fetches_nothing(browser, inside)
    assert [token.text.split()[0] for token in tokens(browser)] == "^ c a b d = a b $".split()
    assert HOSTILE in browser.find_element(By.TAG_NAME, "h1").text
    assert "L0H0 attends to i−j = 1, weight 1.00" in browser.find_element(By.ID, "finding").text


def test_a_token_a_head_and_a_query_can_be_chosen(browser: Browser, inside: str) -> None:
    opened(browser, inside)
    browser.find_element(By.CSS_SELECTOR, "input[name=head][value='2']").click()  # L1H0
    tokens(browser)[6].click()  # the queried letter
    panel = browser.find_element(By.ID, "panel").text
    assert "From a (6)" in panel and "The circuit writes b from token: b (3)." in panel
    assert re.search(r"L1H0\s+b \(3\) 1\.00", panel) and re.search(r"L0H0\s+= \(5\) 1\.00", panel)
    assert re.search(r"after layer 1 b 1\.00", panel)
    read = "return [...document.querySelectorAll('.token')].map((token) => token.style.getPropertyValue('--weight'))"
    shades = [float(weight) for weight in browser.execute_script(read)]
    assert shades.index(max(shades)) == 3 and max(shades) > 0.99
    assert "source" in tokens(browser)[3].get_attribute("class")
    tokens(browser)[6].send_keys(Keys.ARROW_RIGHT)
    assert "From b (7)" in browser.find_element(By.ID, "panel").text
    assert "= (5)" in browser.find_element(By.ID, "panel").text
    browser.find_element(By.CSS_SELECTOR, "#whole summary").click()  # a click on the pattern chooses the query
    script = """const canvas = document.getElementById("pattern"), box = canvas.getBoundingClientRect();
    const at = {clientX: box.left + 5, clientY: box.top + 1 + (arguments[0] + .5) * canvas.height / 9, bubbles: true};
    canvas.dispatchEvent(new MouseEvent("click", at));"""
    browser.execute_script(script, 4)
    assert "From d (4)" in browser.find_element(By.ID, "panel").text


def tokens(browser: Browser) -> list:
    return browser.find_elements(By.CSS_SELECTOR, ".token")
