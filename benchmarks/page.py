"""How quickly the page answers: `python benchmarks/page.py`.

The lecture as one file: first sight, and every slider of every picture dragged by a mouse that moves 60 times a second: how
many pictures the page paints of the moves that change its picture, and the processor time of one. The workbench: the first
board, a key press, a drag, fifty people at once. `python benchmarks/page.py lecture` measures the lecture alone, its window
1,440 pixels wide; a second argument is another width.
"""

from __future__ import annotations

import asyncio
import gzip
import math
import random
import sys
import tempfile
import time
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.web.browsing import CHROMIUM, OPTIONS, browser, page_of, served

from steptime.lecture.story import chapters
from steptime.web.lecture_page import export_lecture

BOARDS = {"step": "batch", "cost": "batch", "plan": "speed"}
UPDATES, EVERY = 60, 33  # of a drag, and milliseconds between them on the workbench
RATE = 60  # moves of the mouse per second on the lecture
BARE = "limit of the machine: an update of one attribute"
USERS, ASKED = 50, 12  # people at once, and questions of each

PRESS = """([board, input, up]) => new Promise((done) => {
  const element = document.getElementById(board), slider = element.querySelector(`[data-input=${input}] input[type=range]`);
  const began = performance.now();
  new MutationObserver((_, watcher) => { watcher.disconnect(); requestAnimationFrame(() => done(performance.now() - began)); })
    .observe(element, { attributes: true, attributeFilter: ["data-shown"] });
  slider.value = +slider.value + up;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
})"""
DRAG = """([board, input, updates, every]) => new Promise((done) => {
  const element = document.getElementById(board), slider = element.querySelector(`[data-input=${input}] input[type=range]`);
  const before = +element.dataset.shown, began = +slider.value;
  let n = 0;
  const timer = setInterval(() => {
    slider.value = began + 4 * (n += 1);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    if (n === updates) { clearInterval(timer); setTimeout(() => done(+element.dataset.shown - before), 150); }
  }, every);
})"""

# A drag of a slider of the lecture: where the mouse goes, how many of its moves change the picture, and what the page paints.
# A frame counts as a picture if an element of it differs from the frame before and an input of the slider came in between:
# two moves in one frame are one picture, and axes that settle after the drag are none. Its time runs from input to end of
# frame. The moves that change the picture are those whose values, drawn one by one after the drag, give another picture.
# With `bare` an update writes one attribute and nothing else: what this machine and browser can show of any page.
LECTURE_DRAG = """([chapter, name, moves, bare]) => {
  const { place } = stages.find((one) => one.about.id === chapter), about = VARIABLES.get(name);
  const slider = document.querySelector(`#${chapter} .stage input[id^='slider-${name}-']`), former = state.values[name];
  const box = slider.getBoundingClientRect(), wide = box.width - 16;
  const begun = slider.value / 1000, step = (begun < 0.5 ? 0.45 : -0.45) / moves;
  const values = Array.from({ length: moves + 1 }, (_, n) => fromTrack(about, Math.round((begun + n * step) * 1000) / 1000));
  const times = [];
  let pictures = 0, last = 0;
  const onInput = (event) => { last ||= event.timeStamp; };
  const watcher = new MutationObserver((list) => {
    const seen = new Map();
    const isFirst = ({ target, attributeName }) => {
      if (!seen.has(target)) seen.set(target, new Set());
      return !seen.get(target).has(attributeName) && seen.get(target).add(attributeName);
    };
    const differs = (one) => one.type !== "attributes" || one.target.getAttribute(one.attributeName) !== one.oldValue;
    if (!list.filter(isFirst).some(differs)) return;
    if (!last) return;
    const began = last, { port1, port2 } = new MessageChannel();
    pictures += 1;
    last = 0;
    port1.onmessage = () => { times.push(performance.now() - began); };
    port2.postMessage(0);
  });
  const watchersOfPage = [...watchers];
  if (bare) watchers.splice(0, watchers.length, () => { place.dataset.moved = state.values[name]; });
  window.beginDrag = () => {
    slider.addEventListener("input", onInput);
    watcher.observe(place, { attributes: true, attributeOldValue: true, childList: true, characterData: true, subtree: true });
  };
  window.endDrag = () => {
    watcher.disconnect();
    slider.removeEventListener("input", onInput);
    const drawn = values.map((value) => { state.values[name] = value; changing = true; update(); return place.outerHTML; });
    watchers.splice(0, watchers.length, ...watchersOfPage);
    delete place.dataset.moved;
    change({ [name]: former }, true);
    return [times, pictures, drawn.filter((one, n) => n && one !== drawn[n - 1]).length];
  };
  return [box.left + 8 + begun * wide, box.top + box.height / 2, step * wide];
}"""
READABLE = """() => ["first-contentful-paint", "ready"].map((name) => performance.getEntriesByName(name)[0].startTime)"""


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


class Drag(NamedTuple):
    """A slider that the mouse drags: seconds of processor are those of the page's main thread."""

    picture: str
    slider: str
    changes: int
    pictures: int
    milliseconds: list[float]
    processor: float


async def drag(page: Any, devtools: Any, picture: str, chapter: str, name: str, *, is_bare: bool = False) -> Drag:
    """Drag a slider by 60 moves of the mouse in a second, whether or not the page keeps up."""

    async def processor() -> float:
        return next(
            float(one["value"])
            for one in (await devtools.send("Performance.getMetrics"))["metrics"]
            if one["name"] == "TaskDuration"
        )

    x, y, step = await page.evaluate(LECTURE_DRAG, [chapter, name, UPDATES, is_bare])
    await page.mouse.move(x, y)
    await page.mouse.down()
    await page.wait_for_timeout(60)
    await page.evaluate("beginDrag()")
    before, began, moves = await processor(), time.perf_counter(), []
    for number in range(1, UPDATES + 1):
        place = {"x": x + number * step, "y": y, "button": "left", "buttons": 1}
        moves.append(asyncio.create_task(devtools.send("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})))
        await asyncio.sleep(max(began + number / RATE - time.perf_counter(), 0))
    await asyncio.gather(*moves)
    await page.wait_for_timeout(60)
    spent = await processor() - before
    times, pictures, changes = await page.evaluate("endDrag()")
    await page.mouse.up()
    # Axes settle after a drag.
    await page.wait_for_timeout(450)
    return Drag(picture, name, changes, pictures, times, spent)


async def lecture_drags(address: str, width: int) -> list[Drag]:
    """Drag every slider of every step, alone and with all four numbers drawn; and one of each chapter with bare updates."""
    from playwright.async_api import async_playwright

    drags = []
    async with async_playwright() as play:
        started = await play.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        page = await started.new_page(viewport={"width": width, "height": 900})
        devtools = await page.context.new_cdp_session(page)
        # Processor time, so that other programs of the machine count less.
        await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        await page.goto(address)
        await page.wait_for_selector("html[data-ready]")
        for chapter in chapters():
            pictures = {picture["id"]: picture for picture in chapter["pictures"]}
            for number, step in enumerate(chapter["steps"], 1):
                place = f"{chapter['id']}-{number}"
                await page.evaluate(
                    "([id, share]) => scrollBy({ behavior: 'instant',"
                    " top: document.getElementById(id).getBoundingClientRect().top - innerHeight * share })",
                    [place, 0.62 if width < 500 else 0.3],
                )
                await page.wait_for_selector(f"#{place}.here")
                await page.wait_for_timeout(600)
                # A scene that plays draws by itself.
                await page.evaluate("for (const one of stages) one.stop()")
                views = page.locator(f"#{chapter['id']} .views input")
                is_four = "four" in pictures[step["picture"]] and "view" not in pictures[step["picture"]]
                for view in ("ideal", "all") if is_four else ("",):
                    if view:
                        await views.and_(page.locator(f"[value={view}]")).check(force=True)
                        await page.wait_for_timeout(500)
                    title = f"{chapter['id']} {number}{' all four' * (view == 'all')}: {step['picture']}"
                    drags += [await drag(page, devtools, title, chapter["id"], name) for name in step["controls"]]
                if is_four:
                    await views.and_(page.locator("[value=ideal]")).check(force=True)
                if number == 1:
                    drags.append(await drag(page, devtools, BARE, chapter["id"], step["controls"][0], is_bare=True))
        await started.close()
    return drags


def lecture(width: int = 1440) -> None:
    """Print first sight and sizes of the lecture as one file, and a row for each picture of each step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lecture.html"
        size = export_lecture(str(path))
        print(f"one file: {size / 1e3:.0f} kB (1,000), {len(gzip.compress(path.read_bytes())) / 1e3:.0f} kB compressed (300)")
        firsts = []
        with browser() as started:
            for _ in range(5):
                with page_of(started, width=width) as (page, _said):
                    page.goto(path.as_uri())
                    page.wait_for_selector("html[data-ready]")
                    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
                    firsts.append(page.evaluate(READABLE))
        readable, ready = (median(column) / 1e3 for column in zip(*firsts, strict=True))
        print(f"first chapter readable after {readable:.2f} s (0.5), interactive after {ready:.2f} s (1.0)")
        drags = asyncio.run(lecture_drags(path.as_uri(), width))
    print("| chapter, step and picture | sliders | median | p95 | pictures of changes | processor |")
    print("|---|---|---:|---:|---:|---:|")
    drawn, bare = ([one for one in drags if (one.picture == BARE) is is_bare] for is_bare in (False, True))
    for picture, group in groupby(drawn, key=attrgetter("picture")):
        print_drags(picture, list(group))
    print_drags("all", drawn)
    print_drags(BARE, bare)


def print_drags(picture: str, drags: list[Drag]) -> None:
    """Print a row: input to picture, pictures painted of changes of the number, and processor time of a picture."""
    times = [each for one in drags for each in one.milliseconds] or [math.nan]
    painted, changes = sum(one.pictures for one in drags), sum(one.changes for one in drags)
    spent = sum(one.processor for one in drags)
    names = ", ".join(one.slider for one in drags) if len(drags) < 9 else f"{len(drags)} sliders"
    print(
        f"| {picture} | {names} | {median(times):.0f} ms | {quantile(times, 0.95):.0f} ms | {painted} of {changes} | "
        f"{1e3 * spent / max(painted, 1):.1f} ms |"
    )


def in_browser(address: str) -> None:
    with browser() as started:
        firsts = []
        for _ in range(5):
            with page_of(started) as (page, _said):
                began = time.perf_counter()
                page.goto(f"{address}workbench")
                page.wait_for_selector("#step[data-shown]")
                firsts.append(time.perf_counter() - began)
        print(f"first board shown: {median(firsts):.2f} s, the first time {firsts[0]:.2f} s (at most 1.0)")
        for board, moved in BOARDS.items():
            with page_of(started) as (page, _said):
                page.goto(f"{address}workbench#{board}")
                page.wait_for_selector(f"#{board}[data-shown]", timeout=30_000)
                page.wait_for_timeout(1500)
                at = f"#{board} [data-input={moved}] input[type=range]"
                page.evaluate("at => { document.querySelector(at).value = 300; }", at)
                took = [page.evaluate(PRESS, [board, moved, 3]) for _ in range(40)][3:]
                page.wait_for_timeout(1000)
                drawn = page.evaluate(DRAG, [board, moved, UPDATES, EVERY])
                print(
                    f"{board}: press to picture {median(took):.0f} ms at the median, "
                    f"{quantile(took, 0.95):.0f} ms at p95 (50, 100); "
                    f"{drawn} of {UPDATES} updates shown in a drag (55)"
                )


async def crowd(address: str) -> None:
    import httpx2 as httpx

    took: list[float] = []

    async def person(number: int) -> None:
        draw = random.Random(number)
        async with httpx.AsyncClient(base_url=address, timeout=30) as client:
            for _ in range(ASKED):
                await asyncio.sleep(draw.uniform(0, 1.0))
                began = time.perf_counter()
                answer = await client.post(
                    "api/boards/step", json={"batch": draw.randint(1, 60_000), "context": draw.randint(1, 100_000)}
                )
                assert answer.status_code == 200
                took.append(time.perf_counter() - began)

    await asyncio.gather(*(person(n) for n in range(USERS)))
    print(
        f"{USERS} people, a step board each half second: {1e3 * median(took):.0f} ms at the median, "
        f"{1e3 * quantile(took, 0.95):.0f} ms at p95 (300)"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["lecture"]:
        lecture(*(int(width) for width in sys.argv[2:3]))
        sys.exit()
    lecture()
    with served() as place:
        in_browser(place)
        asyncio.run(crowd(place.replace("localhost", "127.0.0.1")))
