"""Make the README's pictures: the Pareto front of its plan, and a screenshot of the page.

usage: python docs/pictures.py

The screenshot needs Chromium and Playwright (`pip install '.[dev]'`).
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
    """Write both pictures."""
    IMAGES.mkdir(exist_ok=True)
    workload = st.Workload(input_tokens=8192, output_tokens=1024)
    st.plan("deepseek-ai/DeepSeek-V3", "gb200-nvl72", workload, st.Slo(tpot=0.02, ttft=2)).plot(str(IMAGES / "pareto.png"))
    with served() as address, browser() as chromium:
        page = chromium.new_page(viewport={"width": 1440, "height": 800})
        page.goto(f"{address}#step?model=deepseek-ai/DeepSeek-V3&system=gb200-nvl72&step.batch=2048")
        page.wait_for_selector("svg")
        page.wait_for_timeout(1500)
        page.screenshot(path=str(IMAGES / "page.png"))


if __name__ == "__main__":
    main()
