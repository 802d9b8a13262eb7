"""The documentation site: every command runs, links resolve, questions of strangers are two clicks from the first page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from console_blocks import DOCS, FIGURE, blocks, notebook, pages, run_blocks, run_command, with_outputs

from tests.conftest import each

ROOT = DOCS.parent
PAGES = [str(path.relative_to(DOCS)) for path in pages()]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# A question of an engineer, a buyer, a trainer, a designer or a student; the page that answers it, and words of the answer.
QUESTIONS = {
    "engineer: which layout serves my model cheapest within my limits?": ("tutorials/deploy.md", "steptime plan"),
    "engineer: which command starts vLLM with it?": ("how-to/launch.md", "--launch vllm"),
    "engineer: what will the slowest tenth of users see?": ("how-to/percentiles.md", "p90"),
    "engineer: how many hosts for 100 requests a second?": ("how-to/fleet.md", "--rate 100"),
    "engineer: can my benchmark result correct the prediction?": ("how-to/own-runs.md", "--anchor"),
    "engineer: does it fit, and how many sequences?": ("physics/memory.md", "sequences_that_fit"),
    "engineer: what do many LoRA adapters cost?": ("how-to/lora.md", "--lora-adapters"),
    "buyer: which system is cheapest?": ("tutorials/buy.md", "steptime compare"),
    "buyer: is an API cheaper than own chips?": ("how-to/api-or-own.md", "--self-host"),
    "buyer: how far off are these figures?": ("accuracy.md", "90 % range"),
    "buyer: how much power and CO2?": ("how-to/energy.md", "--carbon"),
    "trainer: how many days and dollars?": ("tutorials/train.md", "--tokens 15T"),
    "trainer: why does it run out of memory?": ("how-to/training-memory.md", "--sharding"),
    "trainer: how large a model on how many tokens?": ("how-to/model-size.md", "steptime budget"),
    "trainer: how many chips for a deadline?": ("tutorials/train.md", "--deadline"),
    "designer: what if bandwidth were doubled?": ("tutorials/design.md", "chip.hbm.bandwidth"),
    "designer: how do I describe my chip?": ("how-to/own-machine.md", "--toml"),
    "designer: which unknown matters most?": ("how-to/sweep.md", "steptime sensitivity"),
    "student: why is a small batch expensive?": ("physics/cost.md", "small batches"),
    "student: why does decode wait for memory?": ("physics/step.md", "memory is its limit"),
    "student: what does TPOT mean?": ("nomenclature.md", "TPOT"),
    "stranger: can my Mac run it, and how fast?": ("how-to/desk.md", "m4-max"),
    "stranger: what about GGUF files?": ("how-to/desk.md", "q4_k_m"),
    "stranger: is my running vLLM as fast as it should be?": ("how-to/live.md", "steptime watch"),
    "stranger: is there a Grafana board?": ("how-to/live.md", "--dashboard"),
    "stranger: how do I log a training run against the prediction?": ("how-to/live.md", "TrainingCallback"),
    "stranger: is there an entry for LiteLLM, a Helm file, a bill?": ("how-to/launch.md", "litellm.yaml"),
    "stranger: several models share my chips": ("fleet.md", "steptime fleet"),
    "stranger: my users are agents with long sessions": ("plans.md", "--sessions"),
    "stranger: what does an image cost?": ("command-line.md", "--image"),
    "stranger: which chips are known, from which source?": ("how-to/own-machine.md", "source and grade"),
    "stranger: my model is not in the list": ("how-to/own-model.md", "config.json"),
    "stranger: which extras do I need?": ("how-to/programs.md", "steptime[simulate]"),
    "stranger: does it need a network?": ("how-to/programs.md", "needs no network"),
    "stranger: what is not modelled?": ("validation.md", "not modelled"),
    "stranger: can my simulator use it as a clock?": ("predictor.md", "compile_predictor"),
    "stranger: can my assistant ask it?": ("how-to/programs.md", "steptime mcp"),
    "stranger: what do exit codes mean?": ("how-to/programs.md", "Exit codes"),
    "stranger: does FP4 pay?": ("how-to/formats.md", "fp4"),
    "stranger: is a separate prefill pool worth it?": ("plans.md", "prefill"),
    "stranger: what do batch jobs cost, where nobody waits?": ("tutorials/deploy.md", "without limits"),
    "stranger: I pay another rent": ("tutorials/buy.md", "--rent"),
    "stranger: which releases of vLLM are known?": ("scoreboard.md", "Engines and releases"),
    "stranger: does it know diffusion models?": ("how-to/own-model.md", "Diffusion models"),
    "stranger: is my result of AIPerf or GuideLLM read?": ("how-to/own-runs.md", "AIPerf"),
    "stranger: what do cold starts cost?": ("simulate.md", "--autoscale"),
    "stranger: which Pythons and platforms?": ("how-to/programs.md", "Python 3.11"),
    "stranger: may I use it at work, and how do I cite it?": ("how-to/programs.md", "CITATION.cff"),
    "stranger: what does a prefix cache save?": ("how-to/long-context.md", "--cached"),
}


DETAILED = ("how-to/", "notebooks/", "physics/", "tutorials/train")


# The stages `site` and `slow` of .ci/run run the commands of all pages.
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.thorough) if page.startswith(DETAILED) else page for page in PAGES]
)
def test_quick_commands_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPTIME_CATALOG", str(DOCS))
    for block, output in run_blocks((DOCS / page).read_text(encoding="utf-8"), tmp_path, slow=False):
        assert output.strip() or "print" not in block.body


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_all_commands_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPTIME_CATALOG", str(DOCS))
    markdown = (DOCS / page).read_text(encoding="utf-8")
    outputs = list(run_blocks(markdown, tmp_path))
    for name in re.findall(r"<!-- picture: ([\w.-]+):", markdown):
        assert (tmp_path / name).stat().st_size > 1_000
    # A figure is shown as an image, all other output as text.
    texts = [output for _, output in outputs if output.strip() and not output.startswith("data:image")]
    assert with_outputs(markdown, outputs).count("```text") >= len(texts)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["plans.md", "simulate.md"])
def test_outputs_that_a_page_shows_are_those_of_its_commands(page: str):
    """`...` stands for lines that the page leaves out."""
    shown = [block for block in blocks((DOCS / page).read_text(encoding="utf-8")) if len(block.commands) == 1]
    outputs = [(block.commands[0], block.body.replace("\\\n", " ").partition("\n")[2].splitlines()) for block in shown]
    outputs = [(command, lines) for command, lines in outputs if any(line.strip() for line in lines)]
    assert outputs
    for command, lines in outputs:
        printed = {line.strip() for line in run_command(command).splitlines()}
        assert {line.strip() for line in lines} - {"..."} <= printed | {""}, command


def test_every_page_that_runs_commands_has_some():
    commands = [command for page in pages() for block in blocks(page.read_text(encoding="utf-8")) for command in block.commands]
    assert len(commands) > 60
    assert {command.split()[1] for command in commands} >= {"plan", "step", "compare", "simulate", "train", "budget", "prices"}


def test_a_command_that_ends_with_an_error_is_an_error_of_its_page():
    with pytest.raises(AssertionError, match="ended with 1"):
        run_command("steptime step no-such-model hgx-h100")
    with pytest.raises(AssertionError, match="only commands of steptime"):
        run_command("rm -rf /")


def test_outputs_stand_behind_their_blocks():
    page = "A\n\n```console\n$ steptime laws epoch\n```\n\nB\n"
    (block,) = blocks(page)
    text = with_outputs(page, [(block, "first\nsecond\n")])
    assert text.index("steptime laws") < text.index("    second") < text.index("\nB\n")


def test_a_notebook_has_text_code_outputs_and_figures():
    page = "# Title\n\n```python\nprint(1)\n```\n\nText.\n\n```python\n1 / 3\n```\n\nEnd.\n"
    first, second = blocks(page)
    cells = notebook(page, [(first, "1\n"), (second, f"{FIGURE}QUJD\n")])["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown", "code", "markdown"]
    assert [cell["source"] for cell in cells] == [["# Title"], ["print(1)"], ["Text."], ["1 / 3"], ["End."]]
    assert cells[1]["outputs"][0]["text"] == ["1\n"]
    assert cells[3]["outputs"][0]["data"] == {"image/png": "QUJD"}
    assert len({cell["id"] for cell in cells}) == 5


@each("page", [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))])
def test_links_of_a_page_lead_to_files(page: str):
    path = DOCS / page
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if urlparse(target).scheme or target.startswith("../reference/api/"):
            continue
        assert (path.parent / unquote(target)).exists(), target


def test_the_navigation_has_every_page_once():
    names = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) == len(set(names))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    assert set(names) - {"README.md"} == there


@each("question", QUESTIONS)
def test_a_question_is_answered_within_two_clicks(question: str):
    page, words = QUESTIONS[question]
    assert words in (DOCS / page).read_text(encoding="utf-8")
    clicks = {"index.md": 0}
    for distance in (0, 1):
        for name in [name for name, clicked in clicks.items() if clicked == distance]:
            for target in LINK.findall((DOCS / name).read_text(encoding="utf-8")):
                place = os.path.normpath((DOCS / name).parent / target)
                if not urlparse(target).scheme and place.startswith(str(DOCS)) and place.endswith(".md"):
                    clicks.setdefault(os.path.relpath(place, DOCS), distance + 1)
    assert clicks[page] <= 2


# --- the built site ------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Links, ids and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.formulas = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self.formulas += tag == "math"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe") and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") == "stylesheet":
            self.loaded.append(values["href"])


@pytest.mark.slow
def test_the_site_builds_strictly_and_its_links_and_anchors_resolve(tmp_path: Path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    environment = {**os.environ, "STEPTIME_SITE_RUN": "0", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    site = {path: Page(path) for path in tmp_path.rglob("*.html")}
    assert len(site) > 60
    wrong = []
    for path, page in site.items():
        # No page loads anything from elsewhere.
        assert not [name for name in page.loaded if urlparse(name).scheme in ("http", "https")]
        for link in page.links:
            target, anchor = urldefrag(link)
            if urlparse(link).scheme or path.name == "404.html":
                continue
            place = (path.parent / unquote(target)).resolve() if target else path
            place = place / "index.html" if place.is_dir() else place
            if not place.exists() or (anchor and place in site and unquote(anchor) not in site[place].ids):
                wrong.append((str(path.relative_to(tmp_path)), link))
    assert wrong == []
    assert site[tmp_path / "physics" / "step.html"].formulas >= 2
    assert not [path for path in site if "arithmatex" in path.read_text(encoding="utf-8")]
