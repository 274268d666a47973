"""The report in a real browser: nothing is fetched, nothing complains, everything is there, nothing overflows."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.html import render_html
from reports.inputs import read_inputs
from reports.model import build_report
from reports.pareto_page import search_report
from reports.words import Words
from tests.browser.chromium import Browser, find_chromium, running
from tests.reports import sample
from tests.reports import test_pareto as front
from tests.reports.kept import make_check, make_sweep

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium, or HEADCOUNT_CHROMIUM"),
    pytest.mark.xdist_group("browser"),
]
WIDTHS = [390, 1440]

# Elements that stick out of the window to the right, and are not inside something that scrolls by itself.
OVERFLOW = """
[...document.querySelectorAll('body *')].filter(e => {
  for (let p = e; p; p = p.parentElement) {
    const o = getComputedStyle(p).overflowX;
    if ((o === 'auto' || o === 'scroll') && p !== e) return false;
  }
  return e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1;
}).map(e => e.tagName + '.' + e.className).slice(0, 5)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with running(CHROMIUM) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, words = tmp_path_factory.mktemp("pages"), Words.of("en")
    texts = {"en": sample.rendered()["html"], "pt-BR": sample.rendered("pt-BR")["html"]}
    texts["comparison"] = render_html(build_report([sample.source(), sample.source()], words), words)
    inputs = read_inputs([make_sweep(folder / "sweep"), make_check(folder / "check")], None)
    texts["sweep and check"] = render_html(build_report([], words, beside=inputs.beside), words)
    texts["front"] = render_html(search_report(front.document(), words), words)
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["en", "pt-BR", "comparison", "sweep and check", "front"])
def test_a_page_is_whole_at_any_width(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name].as_uri(), width)
    requested = [event["request"]["url"] for event in browser.named("Network.requestWillBeSent")]
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []
    assert browser.named("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(OVERFLOW) == []


def test_tables_and_charts_are_there_and_have_a_size(browser: Browser, pages: dict[str, Path]) -> None:
    report = build_report([sample.source()], Words.of("en"))
    browser.open(pages["en"].as_uri(), 1440)
    assert browser.value("document.querySelectorAll('figure svg.chart').length") == len(report.figures())
    assert browser.value("document.querySelectorAll('.table table').length") == len(report.tables())
    small = "[...document.querySelectorAll('svg.chart')].filter(e => e.getBoundingClientRect().height < 100).length"
    assert browser.value(small) == 0


def test_the_answer_is_on_the_first_screen(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["en"].as_uri(), 1440)
    for selector in (".big", ".badge", ".headchart svg", ".changes li", ".limits li", ".calibration"):
        top = browser.value(f"document.querySelector('{selector}').getBoundingClientRect().top")
        assert 0 <= top < 900, selector


def test_text_in_charts_is_readable_on_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["en"].as_uri(), 390)
    height = (
        "Math.min(...[...document.querySelectorAll('svg.chart text')].map(e => e.getBoundingClientRect().height || 99))"
    )
    assert browser.value(height) >= 9


def test_numbers_behind_a_chart_open_on_a_click(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["en"].as_uri(), 390)
    browser.value("document.querySelector('details summary').click()")
    assert browser.value("document.querySelector('details').open") is True
    browser.value("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert browser.value("document.documentElement.scrollWidth") <= 390
    assert browser.value(OVERFLOW) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    browser.open(pages["en"].as_uri(), 1440)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    rgb = "(e => getComputedStyle(document.querySelector(e)))"
    ground = luminance(browser.value(f"{rgb}('.answer').backgroundColor"))
    assert (ground > 0.5) is (scheme == "light")
    for selector in (".answer p", ".badge", ".facts dt", "figcaption", "a[href]", ".big"):
        colour = luminance(browser.value(f"{rgb}('{selector}').color"))
        contrast = (max(colour, ground) + 0.05) / (min(colour, ground) + 0.05)
        assert contrast >= 4.5, f"{selector}: {contrast:.2f}"
    for slot in range(4):  # graphics need 3:1 (WCAG 1.4.11)
        colour = luminance(browser.value(f"getComputedStyle(document.documentElement).getPropertyValue('--c{slot}')"))
        assert (max(colour, ground) + 0.05) / (min(colour, ground) + 0.05) >= 3, f"slot {slot}"
    browser.call("Emulation.setEmulatedMedia", features=[])


def test_it_prints(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["en"].as_uri(), 1440)
    pdf = base64.b64decode(
        browser.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"]
    )
    assert pdf.startswith(b"%PDF")
    assert 3 <= pdf.count(b"/Type /Page\n") <= 25 or 3 <= pdf.count(b"/Type/Page") <= 25


@pytest.mark.parametrize("name", ["en", "comparison", "sweep and check"])
def test_nothing_is_wider_than_the_paper(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name].as_uri(), 718)  # A4 less its margins
    browser.call("Emulation.setEmulatedMedia", media="print")
    width = browser.value("document.documentElement.scrollWidth")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert width <= 718


def luminance(colour: str) -> float:
    """Returns the relative luminance of `rgb(r, g, b)` or `#rrggbb` (WCAG 2)."""
    if colour.strip().startswith("#"):
        parts = [int(colour.strip()[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    else:
        parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
