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


# What the focus is on: place in the page, whether it is seen, and the number that it holds.
FOCUS = """() => {
    const one = document.activeElement, box = (one.type === "radio" ? one.parentElement : one).getBoundingClientRect();
    const top = document.elementFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
    const seen = top && (one.contains(top) || one.parentElement.contains(top));
    const number = one.getAttribute("aria-valuenow") ?? (one.type === "range" ? one.value : null);
    return { end: one === document.body, seen: Boolean(seen), stage: Boolean(one.closest(".stage")), number,
        name: one.getAttribute("aria-label") || one.id || one.textContent, kind: one.tagName };
}"""
NOT_REACHED = """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")].filter((one) =>
    one.checkVisibility({ visibilityProperty: true }) && !one.disabled && one.tabIndex >= 0 && !one.closest(".stage")
    && !(one.type === "radio" && !one.checked) && !reached.has(one)).map((one) => one.outerHTML.slice(0, 120))"""


def test_tab_goes_through_the_whole_page_in_view_and_arrows_move_each_number(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        # Without smooth scrolling the place of the focus is known at once.
        page.emulate_media(reduced_motion="reduce")
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        page.evaluate("window.reached = new Set(); document.addEventListener('focusin', (event) => reached.add(event.target));")
        stops, moved, unseen, still = 0, 0, [], []
        while stops < 900:
            page.keyboard.press("Tab")
            focus = page.evaluate(FOCUS)
            if focus["end"]:
                break
            stops += 1
            if not focus["seen"]:
                unseen.append(focus["name"])
            if focus["number"] is not None and focus["kind"] == "SPAN":
                # At its upper end a number moves down.
                for key in ("ArrowRight", "ArrowLeft"):
                    page.keyboard.press(key)
                    # The page draws in the next frame.
                    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))")
                    if page.evaluate(FOCUS)["number"] != focus["number"]:
                        moved += 1
                        break
                else:
                    still.append(focus["name"])
        assert 300 < stops < 900
        assert page.evaluate(NOT_REACHED) == []
        assert unseen == []
        assert still == []
        assert moved > 60
        assert said == []


def test_keys_reach_the_sliders_of_each_step(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        page.emulate_media(reduced_motion="reduce")
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        for chapter in chapters():
            for index, step in enumerate(chapter["steps"]):
                place = f"{chapter['id']}-{index + 1}"
                page.evaluate(
                    "(id) => scrollBy(0, document.getElementById(id).getBoundingClientRect().top - innerHeight * 0.3)",
                    place,
                )
                page.wait_for_selector(f"#{place}.here", timeout=5_000)
                page.wait_for_timeout(60)
                # The picture stays in view, so the focus in it scrolls nothing.
                page.locator(f"#{chapter['id']} .stage .bench").focus()
                names = []
                for _ in range(12):
                    page.keyboard.press("Shift+Tab")
                    focus = page.evaluate(FOCUS)
                    # Before the first control come the numbers of the step before, or the end of its picture if it has none.
                    if not focus["stage"] or focus["name"] == "workbench":
                        break
                    names.append(focus["name"])
                    assert page.locator(f"#{place}.here").count() == 1, place
                assert page.locator(f"#{chapter['id']}-{max(index, 1)}.here").count() == 1, place
                for control in step.get("controls", ()):
                    assert [name for name in names if name.startswith(f"slider-{control}-") or name == control], (place, names)
        assert said == []
