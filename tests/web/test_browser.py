"""The page in a real browser: each board opens, draws, changes, keeps its state, and fits a phone."""

from __future__ import annotations

import json
import urllib.request

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")

from steptime.web.board import described, load_boards
from steptime.web.page_export import export_to
from tests.web.browsing import CHROMIUM, browser, page_of, served, shared

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
BOARDS = list(load_boards())


@pytest.fixture(scope="module")
def address():
    with served() as place:
        yield place


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


def opened(page, address, board, query=""):
    page.goto(f"{address}workbench#{board}{query}")
    page.wait_for_selector(f"#{board}[data-shown]", timeout=30_000)
    return page.locator(f"#{board}")


def shown(page, board):
    return int(page.get_attribute(f"#{board}", "data-shown"))


def settle(page, board, before):
    page.wait_for_function(
        "([board, before]) => document.getElementById(board).dataset.shown > before", arg=[board, before], timeout=30_000
    )


# Words of a picture that cover other words of it, or leave the page.
COVERED = """(id) => {
    const all = [...document.querySelectorAll(`#${id} .picture svg text`)];
    const words = all.filter((one) => one.textContent && one.checkVisibility());
    const lines = words.flatMap((one) => (one.querySelector("tspan") ? [...one.querySelectorAll("tspan")] : [one]));
    const boxes = lines.map((one) => [one.textContent, one.getBoundingClientRect()]);
    const share = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]);
    const covers = (a, b) => share(a, b, "left", "right") > 2 && share(a, b, "top", "bottom") > 4;
    return boxes.flatMap(([text, box], n) => [
        ...boxes.slice(n + 1).filter(([, other]) => covers(box, other)).map(([other]) => `${text} / ${other}`),
        ...(box.left < -1 || box.right > document.documentElement.clientWidth + 1 ? [text] : []),
    ]);
}"""


@pytest.mark.parametrize("width", [380, 768, 1440])
@pytest.mark.parametrize("board", BOARDS)
def test_a_board_opens_without_a_word_in_the_console_and_fits(chromium, address, board, width):
    with page_of(chromium, width=width, dark=width == 380) as (page, said):
        place = opened(page, address, board)
        page.wait_for_timeout(200)
        assert said == []
        assert place.locator(".picture svg").count() >= 1
        assert place.locator(".picture svg").first.bounding_box()["width"] > 200
        assert place.locator(".sentence").inner_text().endswith((".", "?", "!"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(COVERED, board) == []
        # On a tablet the bar stays in view: at most a sixth of it.
        assert width < 768 or page.locator("header").bounding_box()["height"] < 150


@pytest.mark.parametrize("board", BOARDS)
def test_a_slider_changes_the_board_and_the_address_keeps_it(chromium, address, board):
    one = next((one for one in described(load_boards()[board].inputs) if one["kind"] == "slider" and not one["more"]), None)
    if one is None:
        pytest.skip("a board of words")
    with page_of(chromium) as (page, said):
        place = opened(page, address, board)
        before = place.locator(".figures").inner_text() + place.locator(".sentence").inner_text()
        slider, field = place.locator(f"[data-input={one['name']}] input[type=range]"), place.locator(f"#{board}-{one['name']}")
        times = shown(page, board)
        slider.focus()
        page.keyboard.press("PageDown")
        page.keyboard.press("PageDown")
        settle(page, board, times)
        page.wait_for_selector(f"#{board}:not([data-busy])", timeout=30_000)
        page.wait_for_timeout(200)
        value = field.input_value()
        after = place.locator(".figures").inner_text() + place.locator(".sentence").inner_text()
        assert after != before
        assert f"{board}.{one['name']}=" in page.url
        page.reload()
        page.wait_for_selector(f"#{board}[data-shown]", timeout=30_000)
        page.wait_for_selector(f"#{board}:not([data-busy])", timeout=30_000)
        assert page.locator(f"#{board}-{one['name']}").input_value() == value
        again = page.locator(f"#{board} .figures").inner_text() + page.locator(f"#{board} .sentence").inner_text()
        assert again == after
        assert said == []


def test_what_a_board_shows_is_what_the_route_answers(chromium, address):
    with page_of(chromium) as (page, _):
        place = opened(page, address, "step", "?step.batch=700&step.context=3000&model=llama-3.1-8b&system=hgx-h100")
        request = urllib.request.Request(
            f"{address}api/boards/step", method="POST", headers={"content-type": "application/json"},
            data=json.dumps({"batch": 700, "context": 3000, "model": "llama-3.1-8b", "system": "hgx-h100"}).encode(),
        )  # fmt: skip
        with urllib.request.urlopen(request) as answer:
            data = json.load(answer)
        # A number and its unit stay on one line.
        assert place.locator(".sentence").inner_text().replace("\xa0", " ") == data["sentence"]
        assert "\xa0ms" in place.locator(".sentence").inner_text()
        texts = place.locator(".figures dd").all_inner_texts()
        assert texts == [one["text"] for one in data["figures"]]


@pytest.mark.parametrize(
    ("place", "given", "says"),
    [
        ("#step-batch", "many", "batch must be a whole number"),
        ("#step-batch", "0", "batch must be at least 1"),
        ("#step-context", "1e12", "context must be at most"),
        ("#bar-model", "llama-9", "unknown model 'llama-9'; did you mean"),
        ("#bar-system", "hgx-h1000", "unknown system"),
        ("#bar-engine", "vlm", "unknown engine"),
        ("#bar-weights", "fp5", "unknown number format"),
        ("#bar-kv", "fp5", "unknown KV format"),
    ],
)
def test_wrong_input_is_told_beside_its_field_and_the_last_picture_stays(chromium, address, place, given, says):
    with page_of(chromium) as (page, said):
        board = opened(page, address, "step")
        before = board.locator(".picture").inner_html()
        page.fill(place, given)
        page.keyboard.press("Enter")
        message = page.locator(f"*:has(> {place}) .message, *:has(> .row > {place}) .message").first
        page.wait_for_function(
            "([place, says]) => document.querySelector(place).closest('.control, #bar > div').querySelector('.message')"
            ".textContent.includes(says)", arg=[place, says], timeout=10_000,
        )  # fmt: skip
        assert message.count() <= 1
        assert board.locator(".picture").inner_html() == before
        assert [words for words in said if "422" not in words] == []


def test_the_point_is_dragged_along_the_curve(chromium, address):
    with page_of(chromium) as (page, said):
        board = opened(page, address, "step")
        point = board.locator(".picture .point circle").first
        box = point.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        for n in range(10):
            page.mouse.move(x + 15 * n, y)
        page.mouse.up()
        page.wait_for_timeout(600)
        assert int(page.locator("#step-batch").input_value().replace(",", "")) > 600
        assert board.locator(".picture .point circle").first.bounding_box()["x"] > x + 100
        assert said == []


def test_presets_theme_paste_and_copies(chromium, address):
    with page_of(chromium) as (page, said):
        board = opened(page, address, "step")
        times = shown(page, "step")
        board.get_by_role("button", name="lecture's numbers").click()
        settle(page, "step", times)
        assert page.locator("#bar-engine").input_value() == "ideal"
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        for kind, ending in (("JSON", ".json"), ("CSV", ".csv"), ("SVG", ".svg"), ("PNG", ".png")):
            with page.expect_download() as download:
                board.get_by_role("button", name=kind, exact=True).click()
            assert download.value.suggested_filename == f"step{ending}"
        page.locator("#bar button").first.click()
        page.fill("#pasted", json.dumps({"model_type": "llama", "hidden_size": 1024}))
        page.get_by_role("button", name="Use it").click()
        page.wait_for_function("() => document.querySelector('#bar .message').textContent.includes('is missing')")
        assert [words for words in said if "422" not in words] == []


def test_every_board_is_on_the_one_page_and_in_its_contents(chromium, address):
    with page_of(chromium) as (page, said):
        page.goto(f"{address}workbench")
        page.wait_for_selector("#step[data-shown]")
        assert [each.get_attribute("id") for each in page.locator("main > section").all()] == BOARDS
        assert page.locator("nav a").count() == len(BOARDS)
        for board in BOARDS:
            page.locator(f"#{board}").scroll_into_view_if_needed()
            page.wait_for_selector(f"#{board}[data-shown]", timeout=30_000)
        assert said == []


def test_the_documentation_of_the_routes_opens(chromium, address):
    with page_of(chromium) as (page, said):
        page.goto(f"{address}docs")
        page.wait_for_selector("section table")
        assert page.locator("h2", has_text="/api/boards/").count() == len(BOARDS)
        assert said == []


def test_a_static_copy_works_from_a_file_server(chromium, tmp_path):
    made = export_to(str(tmp_path / "copy"))
    assert made > 20 * len(BOARDS)
    with shared(tmp_path / "copy") as address, page_of(chromium) as (page, said):
        page.goto(f"{address}workbench.html#step")
        page.wait_for_selector("#step[data-shown]")
        before = page.locator("#step .sentence").inner_text()
        page.locator("[data-input=batch] input[type=range]").first.focus()
        page.keyboard.press("End")
        page.wait_for_function("before => document.querySelector('#step .sentence').textContent !== before", arg=before)
        for board in BOARDS:
            page.locator(f"#{board}").scroll_into_view_if_needed()
            page.wait_for_selector(f"#{board}[data-shown]", timeout=30_000)
        assert said == []


def test_one_lands_on_the_board_that_the_contents_name_and_back_undoes_a_change(chromium, address):
    with page_of(chromium) as (page, said):
        page.goto(f"{address}workbench")
        page.wait_for_selector("#step[data-shown]")
        for board in (BOARDS[-1], "schedule"):
            page.locator(f"nav a[href='#{board}']").click()
            page.wait_for_selector(f"#{board}[data-shown]:not([data-busy])", timeout=30_000)
            page.wait_for_timeout(2500)
            top = page.locator(f"#{board}").bounding_box()["y"]
            assert -5 < top < 500
        page.evaluate("scrollTo(0, 0)")
        times = shown(page, "step")
        page.locator("#step").get_by_role("button", name="lecture's numbers").click()
        settle(page, "step", times)
        page.wait_for_timeout(400)
        page.go_back()
        page.wait_for_function("() => document.getElementById('bar-engine').value === ''")
        assert page.locator("#step-batch").input_value() == "256"
        assert said == []
