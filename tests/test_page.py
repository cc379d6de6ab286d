"""The page in a real browser: it opens in peace, a cell opens, a table sorts, and it fits a phone."""

import base64

import pandas as pd
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from lengthlens.analyses.page import TERMS, page
from lengthlens.analyses.study import Study
from lengthlens.tests.browsing import (
    DESKTOP,
    NEEDS_BROWSER,
    PHONE,
    Browser,
    browser,
    fetches_nothing,
    never_scrolls_sideways,
    opened,
)
from lengthlens.tests.synthetic import synthetic_provenance, synthetic_study

pytestmark = [NEEDS_BROWSER, pytest.mark.slow]
__all__ = ["browser"]  # a fixture

HOSTILE = "<script>alert(1)</script>"


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
    buttons = browser.find_elements(By.CSS_SELECTOR, "button.cell")
    return next(b for b in buttons if b.get_attribute("aria-label").startswith(f"{task} under {scheme}:"))


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


def test_a_cell_has_an_address(browser: Browser, address: str) -> None:
    fresh = opened(browser, address)
    browser.get(f"{fresh}#cell=copy/rope")
    assert "copy under rope" in panel(browser)
    browser.get(f"{fresh}#cell=%3Cscript%3Ealert(1)%3C%2Fscript%3E/ideal")
    assert f"{HOSTILE} under ideal" in panel(browser)


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
    opened(browser, address)
    heads = [head.text for head in browser.find_elements(By.CSS_SELECTOR, "#matrix tbody th")]
    assert HOSTILE in heads
    square(browser, HOSTILE, "lbpe").click()
    assert HOSTILE in panel(browser) and "</script><b>" in panel(browser)
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 2  # the data and the page's own


def test_a_click_on_a_cell_shows_its_numbers(browser: Browser, address: str, table: pd.DataFrame) -> None:
    opened(browser, address)
    square(browser, "copy", "relative").click()
    assert "copy under relative" in panel(browser) and "impossible" in panel(browser)
    at_twice = [f"{value:.3f}" for value in exact_match(table, "copy", "relative", 20)]
    assert column(browser, "seeds", 4) == at_twice
    curves = browser.find_elements(By.CSS_SELECTOR, "#panel .charts svg")
    assert len(curves) == 3
    assert len(curves[0].find_elements(By.CSS_SELECTOR, "path.line")) == 2  # one for each seed


def test_enter_opens_a_cell_and_arrows_walk(browser: Browser, address: str) -> None:
    opened(browser, address)
    square(browser, "copy", "ideal").send_keys(Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert "copy under lbpe" in panel(browser)
    assert "learned to attend to" in panel(browser)
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
