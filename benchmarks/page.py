"""How quickly the page answers: `python benchmarks/page.py`.

The lecture as one file: first sight, and every slider of every picture in a drag. The workbench: the first board, a key
press, a drag, fifty people at once. `python benchmarks/page.py lecture` measures the lecture alone, its window 1,440
pixels wide; a second argument is another width.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.web.browsing import browser, page_of, served

from steptime.lecture.story import chapters
from steptime.web.lecture_page import export_lecture

BOARDS = {"step": "batch", "cost": "batch", "plan": "speed"}
UPDATES, EVERY = 60, 33  # of a drag, and milliseconds between them
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

# A drag of a slider of the lecture: milliseconds from each input to the end of the frame that paints it, and frames painted.
LECTURE_DRAG = """([chapter, name, updates, every]) => new Promise((done) => {
  const slider = document.querySelector(`#${chapter} .stage input[id^='slider-${name}-']`), start = +slider.value;
  const sign = start < 500 ? 1 : -1, times = [];
  let sent = 0, shown = 0;
  const count = () => { shown += 1; };
  watchers.push(count);
  const move = (value, kind) => { slider.value = value; slider.dispatchEvent(new Event(kind, { bubbles: true })); };
  const timer = setInterval(() => {
    const began = performance.now();
    move(start + sign * 7 * (sent += 1), "input");
    requestAnimationFrame(() => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => { times.push(performance.now() - began); };
      port2.postMessage(0);
    });
    if (sent < updates) return;
    clearInterval(timer);
    setTimeout(() => {
      watchers.splice(watchers.indexOf(count), 1);
      move(start, "input"); move(start, "change");
      done([times, shown]);
    }, 400);
  }, every);
})"""
READABLE = """() => ["first-contentful-paint", "ready"].map((name) => performance.getEntriesByName(name)[0].startTime)"""


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def lecture_sliders(page: Any, width: int) -> Iterator[tuple[str, str, list[float], int]]:
    """Drag every slider of every step; give its picture, its name, the milliseconds of its updates, and how many it showed."""
    for chapter in chapters():
        pictures = {picture["id"]: picture for picture in chapter["pictures"]}
        for number, step in enumerate(chapter["steps"], 1):
            place = f"{chapter['id']}-{number}"
            share = 0.62 if width < 500 else 0.3
            page.evaluate(
                "([id, share]) => scrollBy({ behavior: 'instant',"
                " top: document.getElementById(id).getBoundingClientRect().top - innerHeight * share })",
                [place, share],
            )
            page.wait_for_selector(f"#{place}.here")
            page.wait_for_timeout(600)
            views = ["", "all"] if "four" in pictures[step["picture"]] and "view" not in pictures[step["picture"]] else [""]
            for view in views:
                if view:
                    page.locator(f"#{chapter['id']} .views input[value=all]").check(force=True)
                for name in step["controls"]:
                    times, shown = page.evaluate(LECTURE_DRAG, [chapter["id"], name, UPDATES, EVERY])
                    yield f"{chapter['id']} {number}{' all four' * bool(view)}: {step['picture']}", name, times, shown
            if len(views) > 1:
                page.locator(f"#{chapter['id']} .views input[value=ideal]").check(force=True)


def lecture(width: int = 1440) -> None:
    """Print first sight and sizes of the lecture as one file, and a row for each picture of each step."""
    with tempfile.TemporaryDirectory() as folder, browser() as started:
        path = Path(folder) / "lecture.html"
        size = export_lecture(str(path))
        print(f"one file: {size / 1e3:.0f} kB (1,000), {len(gzip.compress(path.read_bytes())) / 1e3:.0f} kB compressed (300)")
        firsts = []
        for _ in range(5):
            with page_of(started, width=width) as (page, _said):
                page.goto(path.as_uri())
                page.wait_for_selector("html[data-ready]")
                page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
                firsts.append(page.evaluate(READABLE))
        readable, ready = (median(column) / 1e3 for column in zip(*firsts, strict=True))
        print(f"first chapter readable after {readable:.2f} s (0.5), interactive after {ready:.2f} s (1.0)")
        rows: dict[str, list[tuple[str, list[float], int]]] = {}
        with page_of(started, width=width) as (page, _said):
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]")
            for picture, name, times, shown in lecture_sliders(page, width):
                rows.setdefault(picture, []).append((name, times, shown))
    print("| chapter, step and picture | sliders | median | p95 | updates shown, fewest |\n|---|---|---:|---:|---:|")
    for picture, sliders in rows.items():
        times = [each for _, column, _ in sliders for each in column]
        names, fewest = ", ".join(name for name, _, _ in sliders), min(shown for _, _, shown in sliders)
        print(f"| {picture} | {names} | {median(times):.0f} ms | {quantile(times, 0.95):.0f} ms | {fewest} of {UPDATES} |")
    every = [each for sliders in rows.values() for _, column, _ in sliders for each in column]
    fewest = min(shown for sliders in rows.values() for _, _, shown in sliders)
    count = sum(map(len, rows.values()))
    print(
        f"{count} sliders: {median(every):.0f} ms at the median (50), {quantile(every, 0.95):.0f} ms at p95 (100); "
        f"of {UPDATES} updates in a drag at least {fewest} shown"
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
