"""axe-core finds no violation on any chapter or board, in both themes, and the lecture is read with the keyboard alone."""

from __future__ import annotations

from importlib.resources import files

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")

from steptime.lecture.story import chapters
from steptime.web.board import load_boards
from steptime.web.lecture_page import export_lecture
from tests.web.browsing import CHROMIUM, browser, page_of, served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN = """(tags) => axe.run(document, { runOnly: { type: "tag", values: tags }, resultTypes: ["violations"] })
    .then((all) => all.violations.map((one) => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 200)]))"""


@pytest.fixture(scope="module")
def axe():
    pytest.importorskip("axe_playwright_python")
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("lecture") / "lecture.html"
    export_lecture(str(path))
    return path.as_uri()


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


def violations(page, axe):
    # The page's own policy allows no other script, so the browser's debugger runs axe.
    page.evaluate(axe)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    return page.evaluate(RUN, RULES)


def scrolled(page, place):
    page.evaluate("(id) => document.getElementById(id).scrollIntoView({ block: 'center', behavior: 'instant' })", place)
    page.wait_for_timeout(400)


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (1440, True), (390, False), (390, True)])
def test_chapters_have_no_violation(chromium, address, axe, width, dark):
    with page_of(chromium, width=width, dark=dark) as (page, _):
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        # All pictures are drawn once; axe then judges the page as a whole, with all details open.
        for chapter in chapters():
            scrolled(page, f"{chapter['id']}-1")
            for view in page.locator(f"#{chapter['id']} .views input[value=all]").all():
                view.check(force=True)
        assert violations(page, axe) == []


@pytest.mark.parametrize("dark", [False, True])
def test_boards_have_no_violation(chromium, axe, dark):
    with served() as place, page_of(chromium, width=1440, dark=dark) as (page, _):
        page.goto(f"{place}workbench")
        page.wait_for_selector(".board[data-shown]", timeout=60_000)
        for name in load_boards():
            scrolled(page, name)
            page.wait_for_selector(f"#{name}[data-shown]", timeout=120_000)
        assert violations(page, axe) == []


def test_keyboard_alone_reaches_and_moves_each_kind_of_control(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.wait_for_timeout(900)
        assert page.evaluate("document.activeElement.id") == "roofline"
        kinds: dict[str, str] = {}
        for _ in range(400):
            page.keyboard.press("Tab")
            kind, outline = page.evaluate(
                "() => { const one = document.activeElement, seen = one.type === 'radio' ? one.nextElementSibling : one;"
                "const style = getComputedStyle(seen);"
                "return [one.tagName + '.' + (one.classList[0] || one.type || ''), style.outlineStyle + style.stroke]; }"
            )
            kinds.setdefault(kind, outline)
            if kind.startswith("BODY"):
                break
            if kind == "SPAN.drag" and "moved" not in kinds:
                before = page.evaluate("document.activeElement.getAttribute('aria-valuenow')")
                page.keyboard.press("ArrowRight")
                page.wait_for_timeout(60)
                kinds["moved"] = (
                    "" if page.evaluate("document.activeElement.getAttribute('aria-valuenow')") == before else "moved"
                )
        assert {"SPAN.drag", "INPUT.range", "INPUT.radio", "BUTTON.term", "circle.point", "BUTTON.spoken", "SUMMARY."} <= set(
            kinds
        )
        assert kinds["moved"] == "moved"
        # Whatever has the focus shows it.
        assert not [
            kind
            for kind, outline in kinds.items()
            if outline.startswith("none") and kind not in ("BODY.", "circle.point", "moved")
        ]
        assert said == []
