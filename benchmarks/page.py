"""How quickly the page answers: the first board, a key press, a drag, fifty people at once: `python benchmarks/page.py`."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.web.browsing import browser, page_of, served

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


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


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
    with served() as place:
        in_browser(place)
        asyncio.run(crowd(place.replace("localhost", "127.0.0.1")))
