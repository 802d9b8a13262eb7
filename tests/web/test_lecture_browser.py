"""The lecture page in a real browser, as one file from the disk: drag, type, guess, share, go back, and read on a phone."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright")

from steptime.lecture.story import chapters, defaults, engine_seconds, state, write_number
from steptime.web.lecture_page import export_lecture
from tests.web.browsing import CHROMIUM, browser, page_of, served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
STEPS = [(one["id"], index + 1) for one in chapters() for index in range(len(one["steps"]))]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("lecture") / "lecture.html"
    export_lecture(str(path))
    return path.as_uri()


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


def opened(page, address, place=""):
    page.goto(address + place)
    page.wait_for_selector("html[data-ready]", timeout=10_000)


def scrolled(page, chapter, step):
    """Scroll a step to the line where its picture is shown."""
    page.evaluate(
        "([id, share]) => { const box = document.getElementById(id).getBoundingClientRect();"
        "scrollTo({ top: scrollY + box.top - innerHeight * share, behavior: 'instant' }); }",
        [f"{chapter}-{step}", 0.62 if page.viewport_size["width"] < 500 else 0.3],
    )
    page.wait_for_selector(f"#{chapter}-{step}.here", timeout=5_000)
    page.wait_for_timeout(60)


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1440, False)])
def test_every_step_draws_its_picture_without_a_word_in_the_console_and_without_a_request(chromium, address, width, dark):
    with page_of(chromium, width=width, dark=dark) as (page, said):
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        opened(page, address)
        for chapter, step in STEPS:
            scrolled(page, chapter, step)
            picture = page.locator(f"#{chapter} .picture svg")
            box = picture.bounding_box()
            assert box["width"] > 250
            assert "NaN" not in picture.inner_html()
            assert "undefined" not in page.locator(f"#{chapter}").inner_text()
            if width == 390:
                # The picture and its first slider are in one screen.
                slider = page.locator(f"#{chapter} .sliders .slider").first
                if slider.count():
                    low = slider.bounding_box()
                    assert box["y"] >= 0
                    assert low["y"] + low["height"] <= 844
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert said == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_a_number_in_a_sentence_is_dragged_and_the_link_has_it(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address)
        scrolled(page, "roofline", 3)
        number = page.locator("#roofline-3 .drag[data-name=batch]")
        assert number.inner_text() == "2,400 sequences"
        box = number.bounding_box()
        page.mouse.move(box["x"] + 20, box["y"] + 8)
        page.mouse.down()
        for step in range(10):
            page.mouse.move(box["x"] + 20 + 9 * step, box["y"] + 8)
        # A pause in a drag is no step of the history.
        page.wait_for_timeout(400)
        page.mouse.up()
        page.wait_for_timeout(400)
        text = number.inner_text()
        assert int(text.split()[0].replace(",", "")) > 10_000
        # All sentences share the number, links to chapters keep it, and the link opens it again.
        page.locator("#contents a[href='#cost']").evaluate("link => link.click()")
        page.wait_for_function("() => document.getElementById('cost').getBoundingClientRect().top < 400", timeout=10_000)
        # The address follows a quarter of a second after the scroll.
        page.wait_for_timeout(500)
        assert {one.inner_text() for one in page.locator(".drag[data-name=batch]").all()} == {text}
        link = page.url
        assert "batch=" in link
        page.go_back()
        page.wait_for_function("() => document.querySelector('.drag[data-name=batch]').textContent === '2,400 sequences'")
        opened(page, link)
        assert page.locator("#roofline-3 .drag[data-name=batch]").inner_text() == text
        assert said == []


def test_keys_move_numbers_points_and_sliders_and_are_told_in_words(chromium, address):
    with page_of(chromium, width=1440) as (page, _):
        opened(page, address)
        scrolled(page, "experts", 3)
        racks = page.locator("#experts-3 .drag[data-name=racks]")
        racks.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => document.querySelector('#experts-3 .drag[data-name=racks]').textContent === '3 racks'")
        assert racks.get_attribute("aria-valuetext") == "3 racks"
        point = page.locator("#experts .point")
        point.focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("() => document.querySelector('#experts-3 .drag[data-name=racks]').textContent === '2 racks'")
        assert point.get_attribute("aria-valuetext").startswith("2 racks: 4")
        slider = page.locator("#experts .slider input").first
        slider.focus()
        page.keyboard.press("End")
        page.wait_for_function("() => document.querySelector('#experts-3 .drag[data-name=racks]').textContent === '8 racks'")
        assert slider.get_attribute("aria-valuetext") == "8 racks"


FOCUSED = """() => { const one = document.activeElement;
    return [one.closest(".chapter")?.id, one.closest(".stage") ? stages.find((each) => each.root.contains(one)).step : -1,
        one.matches(".point") ? "point" : one.labels?.[0]?.textContent || one.getAttribute("aria-label") || one.textContent];
}"""


@pytest.mark.parametrize(("chapter", "width"), [("batch", 1440), ("experts", 390), ("ciphers", 1440)])
def test_tab_reaches_the_sliders_and_the_point_of_every_step_and_shift_and_tab_goes_back(chromium, address, chapter, width):
    with page_of(chromium, width=width) as (page, said):
        page.emulate_media(reduced_motion="reduce")
        opened(page, address)
        scrolled(page, chapter, 1)
        page.locator(f"#{chapter} .lead").evaluate("one => { one.tabIndex = -1; one.focus(); }")
        reached = []
        while not reached or reached[-1][0] == chapter:
            page.keyboard.press("Tab")
            reached.append(page.evaluate(FOCUSED))
            if "numbers of the lecture, computed" in reached[-1][2]:
                break
        names = {one["name"]: one["label"] for one in state()["variables"]}
        (about,) = [one for one in chapters() if one["id"] == chapter]
        pictures = {one["id"]: one for one in about["pictures"]}
        for index, step in enumerate(about["steps"]):
            here = [name for _, at, name in reached if at == index]
            assert {names[control] for control in step["controls"]} <= set(here), index
            # Each step has its picture's point, if it has one, and its table.
            assert "table" in here, index
            assert ("point" in here) == ("drag" in pictures[step["picture"]]), index
        back = [reached[-1]]
        for _ in range(len(reached) - 1):
            page.keyboard.press("Shift+Tab")
            back.append(page.evaluate(FOCUSED))
        assert back == reached[::-1]
        assert said == []


def test_a_guess_is_compared_and_shared(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address)
        guess = page.locator("#batch .guess")
        guess.scroll_into_view_if_needed()
        guess.locator("input").fill("500")
        guess.get_by_role("button", name="reveal").click()
        words = guess.locator(".said").inner_text()
        assert "5,448 sequences" in words
        assert "times too little" in words
        page.wait_for_timeout(400)
        link = page.url
        assert "guess.batch=" in link
        opened(page, link)
        assert page.locator("#batch .guess .said").inner_text() == words
        assert said == []


def test_the_spoken_numbers_the_table_the_words_and_the_machine(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address)
        scrolled(page, "roofline", 3)
        page.locator("#roofline .spoken").click()
        page.wait_for_function("() => document.querySelector('.num[data-name=best_batch]').textContent === '2,400 sequences'")
        page.locator("#roofline .tools .table").click()
        assert page.locator("dialog table tbody tr").count() > 8
        page.get_by_role("button", name="close").click()
        page.locator("#reset").click()
        page.select_option("#system", "hgx-h100")
        page.wait_for_function("() => document.querySelector('#roofline-1 .drag[data-name=chips]').textContent === '8 chips'")
        page.locator("#roofline-4 .term").first.click()
        assert page.locator(".word:popover-open").inner_text().startswith("floor")
        assert said == []


def test_the_picture_of_domains_has_a_server_of_h100_and_the_domain_of_the_page(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address)
        scrolled(page, "domain", 1)
        picture = page.locator("#domain .picture")
        words = picture.inner_text()
        # 5 TB over eight times 3.35 TB/s, and over 72 times 8 TB/s.
        assert "8 H100: 187 ms" in words
        assert "8.71 ms" in words
        # The lecture's weights have half a byte.
        page.locator("#domain .spoken").click()
        page.wait_for_function("() => document.querySelector('#domain .picture').textContent.includes('4.34 ms')")
        assert "8 H100: 93.3 ms" in picture.inner_text()
        assert said == []


# Pairs of texts of a picture that cover each other, and texts that its frame cuts.
BAD_TEXTS = """(id) => {
    const picture = document.querySelector(`#${id} .picture svg`), frame = picture.getBoundingClientRect();
    const isShown = (one) => one.textContent.trim() && one.getAttribute("opacity") !== "0"
        && one.getAttribute("display") !== "none";
    const texts = [...picture.querySelectorAll("text")].filter(isShown)
        .map((one) => [one.textContent, one.getBoundingClientRect()]);
    const cut = texts.filter(([, box]) => box.left < frame.left - 1 || box.right > frame.right + 1
        || box.top < frame.top - 1 || box.bottom > frame.bottom + 1).map(([text]) => text);
    const covered = texts.flatMap(([one, a], n) => texts.slice(n + 1).filter(([, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
        .map(([other]) => `${one} / ${other}`));
    return [...cut, ...covered];
}"""


@pytest.mark.parametrize("width", [390, 1440])
def test_words_of_pictures_are_not_cut_and_do_not_cover_each_other(chromium, address, width):
    with page_of(chromium, width=width) as (page, _):
        page.emulate_media(reduced_motion="reduce")
        opened(page, address)
        wrong = {}
        for chapter, step in STEPS:
            scrolled(page, chapter, step)
            if bad := page.evaluate(BAD_TEXTS, chapter):
                wrong[f"{chapter}-{step}"] = bad
        assert wrong == {}


@pytest.mark.parametrize("chapter", chapters(), ids=lambda one: one["id"])
def test_the_button_of_a_chapter_gives_the_numbers_of_the_lecture(chromium, address, chapter):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address)
        scrolled(page, chapter["id"], 1)
        page.locator(f"#{chapter['id']} .spoken").click()
        page.wait_for_timeout(100)
        for name, expected in chapter["spoken_result"].items():
            assert page.evaluate("(name) => derive(state.values)[name]", name) == pytest.approx(expected, rel=2e-3), name
            # Sentences with this number have its words.
            words = page.evaluate("(name) => written(derive(state.values)[name], unitOf(name), ABOUT.get(name).digits)", name)
            for place in page.locator(f".num[data-name={name}]").all():
                assert place.text_content() == words, name
        assert said == []


def test_a_switch_draws_the_four_numbers_with_their_gap_and_the_link_has_it(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address)
        scrolled(page, "roofline", 3)
        views, gap = page.locator("#roofline .views"), page.locator("#roofline .gap")
        assert gap.inner_text() == ""
        views.locator("input[value=spoken]").check(force=True)
        page.wait_for_function("() => document.querySelector('#roofline .gap').textContent.includes('has the lecture')")
        # The picture has the lecture's best batch; the numbers of the page stay.
        assert "2,4" in page.locator("#roofline .picture").inner_text()
        assert page.locator(".num[data-name=best_batch]").first.inner_text() == "5,448 sequences"
        views.locator("input[value=all]").check(force=True)
        page.wait_for_function("() => document.querySelector('#roofline .gap').textContent.includes('measured')")
        words = gap.inner_text()
        assert all(name in words for name in ("lecture's numbers", "ideal", "engine", "times the ideal", "network"))
        assert page.locator("#roofline .run").count() == 13
        page.wait_for_timeout(400)
        link = page.url
        assert "view.lines=all" in link
        page.select_option("#system", "hgx-b200")
        page.wait_for_function("() => document.querySelectorAll('#roofline .run').length === 158")
        page.select_option("#system", "hgx-a100")
        page.wait_for_function(
            "() => document.querySelector('#roofline .gap').textContent.includes('no public run of this pair')"
        )
        opened(page, link)
        assert page.locator("#roofline .gap").inner_text() == words
        # A changed number has no engine and no runs: they are of the pair.
        opened(page, link + "&total=5e11")
        page.wait_for_function("() => document.querySelector('#roofline .gap').textContent.includes('changed numbers')")
        assert page.locator("#roofline .run").count() == 0
        opened(page, address, "#roofline?view.lines=nonsense&view.nowhere=all")
        assert page.locator("#roofline .views input:checked").get_attribute("value") == "ideal"
        assert said == []


def test_the_lectures_numbers_in_a_picture_change_the_picture_or_are_not_offered(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address)
        scrolled(page, "pipelines", 3)
        picture = page.locator("#pipelines .picture")
        before = picture.inner_html()
        page.locator("#pipelines .views label", has_text="lecture's numbers").click()
        page.wait_for_function("() => document.querySelector('#pipelines .gap').textContent.includes('2 trillion')")
        assert picture.inner_html() != before
        # Stages, interval and hop of the page are those of the lecture.
        scrolled(page, "pipelines", 4)
        page.locator("#pipelines .views label", has_text="lecture's numbers").click()
        page.wait_for_function("() => document.querySelector('#pipelines .gap').textContent.includes('already')")
        for step in (2, 3):
            scrolled(page, "ciphers", step)
            assert page.locator("#ciphers .views").is_hidden()
        assert said == []


def test_sentences_without_their_number_are_left_out(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address)
        text = page.locator("#roofline-6")
        named = (state()[name] for name in ("model", "system"))
        assert write_number(engine_seconds(*named, defaults()["batch"], defaults()["context"]), "s") in text.inner_text()
        scrolled(page, "roofline", 5)
        page.locator("#roofline .spoken").click()
        page.wait_for_function("() => document.querySelector('#roofline-6 [data-if=engine]').hidden")
        assert "times the" not in text.inner_text().split("dashed")[0]
        opened(page, address, "#roofline?context=200000")
        words = page.locator("main").inner_text()
        assert "unknown here" not in words
        assert "no limit" not in words
        assert said == []


def test_the_point_stays_in_the_picture_at_both_ends_of_its_slider(chromium, address):
    with page_of(chromium, width=390) as (page, _):
        page.emulate_media(reduced_motion="reduce")
        for batch, words in ((65536, "$0.0172"), (100, "↑ $0.937")):
            page.goto("about:blank")
            opened(page, address, f"#cost?batch={batch}")
            scrolled(page, "cost", 3)
            frame, point = page.locator("#cost .picture svg").bounding_box(), page.locator("#cost .point").bounding_box()
            assert frame["x"] < point["x"] < point["x"] + point["width"] < frame["x"] + frame["width"]
            assert page.locator("#cost .tag").text_content() == words
            assert page.evaluate(BAD_TEXTS, "cost") == []


@pytest.mark.parametrize("width", [390, 1440])
def test_the_meaning_of_a_word_does_not_cover_its_paragraph(chromium, address, width):
    with page_of(chromium, width=width) as (page, _):
        opened(page, address)
        for place in ("#roofline .lead .term", "#trains-1 .term", "#cost-5 .term"):
            page.locator(place).first.click()
            page.wait_for_timeout(100)
            word = page.locator(".word:popover-open").bounding_box()
            box = page.locator(place).first.locator("xpath=ancestor::p").bounding_box()
            assert word["y"] >= box["y"] + box["height"] or word["y"] + word["height"] <= box["y"], place
            assert word["x"] >= 0
            assert word["x"] + word["width"] <= width
            page.keyboard.press("Escape")


@pytest.mark.parametrize(
    "given",
    [
        "#roofline?batch=1e999&context=-5&total=abc&model=constructor&system=__proto__", "#<img src=x onerror=alert(1)>",
        "#nowhere?guess.nowhere=1&guess.batch=NaN", "#roofline?active=1e12&total=1e9", "#%E0%A4%A?batch=5",
    ],
)  # fmt: skip
def test_odd_addresses_open_the_page(chromium, address, given):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address, given)
        assert page.locator(".num[data-name=best_batch]").first.inner_text().endswith("sequences")
        assert said == []


MOVES = """() => new Promise((done) => {
    const slider = document.querySelector("#roofline .slider input"), times = [];
    const next = (n) => {
        if (n === 40) { done(times.sort((a, b) => a - b)); return; }
        const began = performance.now();
        slider.value = 300 + 5 * n;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        requestAnimationFrame(() => requestAnimationFrame(() => {
            times.push(performance.now() - began);
            setTimeout(next, 5, n + 1);
        }));
    };
    next(0);
})"""


def test_pictures_follow_a_drag(chromium, address):
    with page_of(chromium, width=1440) as (page, _):
        opened(page, address)
        scrolled(page, "roofline", 5)
        took = page.evaluate(MOVES)
        # 50 ms on a quiet machine; two frames are part of it.
        assert took[len(took) // 2] < 150


FOLLOW = """() => new Promise((done) => {
    const find = (selector) => document.querySelector(`#roofline ${selector}`);
    const slider = find(".stage input[id^='slider-batch-']");
    const words = (name) => written(now[name], unitOf(name), ABOUT.get(name).digits);
    slider.value = +slider.value + 80;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    requestAnimationFrame(() => requestAnimationFrame(() => {
        const values = [slider, find(".point")].map((one) => one.getAttribute("aria-valuetext").split(":")[0]);
        const first = values.map((one) => one === words("batch"));
        setTimeout(() => {
            const places = numbers.filter((one) => one.step?.isSeen && one.step.closest("#roofline"));
            const stale = places.filter(({ place, name }) => place.textContent !== words(name));
            done([first, changing, places.length, stale.length, find(".gap").textContent.includes(words("batch"))]);
        }, 400);
    }));
})"""


def test_the_words_of_a_picture_follow_while_its_slider_is_still_held(chromium, address):
    with page_of(chromium, width=1440) as (page, said):
        opened(page, address, "#roofline?view.lines=all")
        scrolled(page, "roofline", 4)
        first, is_held, places, stale, has_gap = page.evaluate(FOLLOW)
        # Values for readers of the screen at once; sentences and the line below the picture without the end of the drag.
        assert first == [True, True]
        assert (is_held, stale, has_gap) == (True, 0, True)
        assert places > 0
        assert said == []


NUDGE = """(by) => new Promise((done) => {
    const slider = document.querySelector("#pipelines .stage input[id^='slider-stages-']"), before = +slider.value;
    let drawn = 0;
    const count = () => { drawn += 1; };
    watchers.push(count);
    slider.value = before + by;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    setTimeout(() => {
        watchers.splice(watchers.indexOf(count), 1);
        done([drawn, slider.value - before, state.values.stages]);
    }, 100);
})"""


def test_a_drag_that_stays_on_a_whole_number_draws_nothing(chromium, address):
    with page_of(chromium, width=1440) as (page, _):
        opened(page, address)
        scrolled(page, "pipelines", 2)
        # The track of 1,000 has one to eight stages: a stage is 143 wide, and the knob returns to it.
        assert page.evaluate(NUDGE, 40) == [0, 0, 4]
        assert page.evaluate(NUDGE, 100) == [1, 142, 5]


def test_paper_has_the_pictures_of_all_steps_and_then_the_screen_is_as_before(chromium, address):
    with page_of(chromium, dark=True) as (page, said):
        opened(page, address)
        page.pdf()
        assert page.locator(".printed").count() == 0
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        titles = {picture["title"] for chapter in chapters() for picture in chapter["pictures"] if picture["id"] != "wall-four"}
        assert set(page.locator(".printed figcaption").all_inner_texts()) == titles
        assert page.locator(".printed svg").count() == page.locator(".printed").count()
        assert not page.locator(".stage").first.is_visible()
        # Dark ink on paper.
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(34, 40, 43)"
        page.emulate_media(media="screen")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator(".printed").count() == 0
        scrolled(page, "roofline", 2)
        assert page.locator("#roofline .stage svg").is_visible()
        assert said == []


def test_with_a_server_the_lists_have_all_of_the_catalogue_and_a_link_opens_any_pair(chromium):
    with served() as place, page_of(chromium, width=1440) as (page, said):
        opened(page, place)
        page.locator("#model").focus()
        page.wait_for_selector("#model optgroup option", state="attached", timeout=20_000)
        page.select_option("#model", "mistralai/Mixtral-8x7B-v0.1")
        page.wait_for_function(
            "() => document.querySelector('#roofline-2 .drag[data-name=total]').textContent.startsWith('46.7 billion')",
            timeout=20_000,
        )
        page.wait_for_timeout(500)
        opened(page, page.url)
        page.wait_for_function(
            "() => document.querySelector('#roofline-2 .drag[data-name=total]').textContent.startsWith('46.7 billion')"
        )
        assert said == []
