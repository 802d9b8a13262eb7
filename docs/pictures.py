"""Make the README's pictures: the Pareto front of its plan, and screenshots of the page.

usage: python docs/pictures.py

The screenshots need Chromium and Playwright (`pip install '.[dev]'`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import steptime as st

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT))

from tests.web.browsing import browser, served  # noqa: E402


def main() -> None:
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    workload = st.Workload(input_tokens=8192, output_tokens=1024)
    st.plan("deepseek-ai/DeepSeek-V3", "gb200-nvl72", workload, st.Slo(tpot=0.02, ttft=2)).plot(str(IMAGES / "pareto.png"))
    with served() as address, browser() as chromium:
        for name, width, step, share, colours in (
            ("lecture", 1440, "roofline-3", 0.3, "light"), ("lecture_phone", 390, "trains-2", 0.62, "light"),
            ("lecture_dark", 1440, "experts-2", 0.3, "dark"),
        ):  # fmt: skip
            size = {"width": width, "height": 800}
            page = chromium.new_page(viewport=size, reduced_motion="reduce", color_scheme=colours)
            page.goto(address)
            page.wait_for_selector("html[data-ready]")
            page.evaluate(
                "([id, share]) => { const { top } = document.getElementById(id).getBoundingClientRect();"
                "scrollBy({ top: top - innerHeight * share, behavior: 'instant' }); }",
                [step, share],
            )  # fmt: skip
            page.wait_for_timeout(800)
            page.screenshot(path=str(IMAGES / f"{name}.png"))


if __name__ == "__main__":
    main()
