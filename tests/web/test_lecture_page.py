"""The lecture page: JavaScript equals Python, the chapters give the lecture's numbers, and one file needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import inspect
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from typer.testing import CliRunner

from steptime import blackboard
from steptime.catalog.hardware_loading import load_system
from steptime.cli.main import app_for
from steptime.errors import DataFileError, UnknownName
from steptime.lecture import lecture_content
from steptime.lecture.current_figures import best_overtraining, flipped_share
from steptime.lecture.lecture_content import WITHIN_FACTOR, between, statements
from steptime.lecture.story import (
    ENGINE_BATCHES,
    catalogue_tables,
    chapters,
    closed_form,
    defaults,
    engine_rows,
    engine_seconds,
    engine_tables,
    evaluate,
    fixed_tables,
    formula_letters,
    glossary,
    measured_runs,
    state,
    text_numbers,
    write_number,
)  # fmt: skip
from steptime.models.model_loading import load_model
from steptime.physics.engine import engine_for
from steptime.physics.layout_space import legal, most_spread
from steptime.physics.step import decode_step
from steptime.web.lecture_page import FIXED, FOLDER, export_lecture, inline, javascript_forms, lecture_html
from tests.conftest import each

NODE = shutil.which("node")
CHAPTERS = chapters()
needs_node = pytest.mark.skipif(NODE is None, reason="no node on this machine")
# Ranges of arguments that are shares, counts of few, or must keep an order.
RANGES = {
    "acceptance": (0, 1), "share": (0.1, 1), "active_experts": (1, 32), "racks": (1, 16), "stages": (1, 64),
    "price_ratio": (1.1, 100), "speed_ratio": (1, 20), "multiple": (1.01, 100), "falls": (0.2, 5), "rises": (0.2, 5),
    "drafts": (0, 16), "groups": (1, 256), "chips": (1, 256), "experts": (64, 512), "active": (1, 32), "tokens": (1, 1e5),
    "read_price": (0.1, 1), "copies": (1, 64), "base_price": (2, 8),
}  # fmt: skip


def node(script: str, data: object) -> object:
    # The program is too long for a command line.
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.cjs"
        program.write_text(script, encoding="utf-8")
        done = subprocess.run(
            [str(NODE), str(program)], check=False, input=json.dumps(data), capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def forms_script() -> str:
    return "const FORMS={" + ",".join(f"{name}:{text}" for name, text in javascript_forms().items()) + "};"


def arguments_of(name: str, count: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    function = closed_form(name)
    names = ["a", "b"] if not name.islower() or name in ("add", "sub", "mul", "truediv", "maximum", "minimum") else [
        key for key in inspect.signature(function).parameters if key != "evenness" and key not in FIXED.get(name, {})
    ]  # fmt: skip
    drawn = {}
    for key in names:
        low, high = RANGES.get(key, (1e-3, 1e12))
        drawn[key] = random.uniform(low, high, count) if low == 0 else np.exp(random.uniform(np.log(low), np.log(high), count))
    return drawn


@needs_node
@pytest.mark.parametrize("points", [1000, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_javascript_equals_python_on_many_points_of_every_closed_form(points):
    random = np.random.default_rng(5)
    drawn = {name: arguments_of(name, points, random) for name in javascript_forms()}
    script = forms_script() + (
        "const all=JSON.parse(require('fs').readFileSync(0,'utf8')), out={};"
        "for(const [name,columns] of Object.entries(all)){const keys=Object.keys(columns);"
        "out[name]=columns[keys[0]].map((_,n)=>{const v=FORMS[name](Object.fromEntries(keys.map(k=>[k,columns[k][n]])));"
        "return Number.isFinite(v)?v:String(v);});}"
        "process.stdout.write(JSON.stringify(out));"
    )
    computed = node(script, {name: {key: list(values) for key, values in columns.items()} for name, columns in drawn.items()})
    for name, columns in drawn.items():
        function = closed_form(name)
        arguments = list(columns.values()) if "a" in columns else []
        expected = function(*arguments) if arguments else function(**columns, **FIXED.get(name, {}))
        words = {"Infinity": np.inf, "-Infinity": -np.inf, "NaN": np.nan}
        values = np.array([words[v] if isinstance(v, str) else float(v) for v in computed[name]])
        np.testing.assert_allclose(values, np.broadcast_to(expected, values.shape), rtol=1e-12, atol=0, err_msg=name)


@needs_node
def test_numbers_of_the_page_are_those_of_python():
    """The script of the page without its document: derived numbers and their words."""
    page = lecture_html(is_live=False)
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    head = script[: script.index("// --- changes")]
    values = dict(defaults()) | {"batch": 777.0, "context": 90_000.0, "stages": 3.0, "hold": 5e4}
    names = [one["name"] for one in (*state()["variables"], *state()["derived"])]
    program = head.replace('"use strict";', "") + (
        "const given=JSON.parse(require('fs').readFileSync(0,'utf8')), all=derive(given.values);"
        "process.stdout.write(JSON.stringify(given.names.map(n=>[Number.isFinite(all[n])?all[n]:null,written(all[n],unitOf(n))])));"
    )
    seconds = engine_seconds(state()["model"], state()["system"], values["batch"], values["context"])
    expected = evaluate(values | {"engine": seconds})
    for (number, words), name in zip(node(program, {"values": values, "names": names}), names, strict=True):
        if np.isfinite(expected[name]):
            assert number == pytest.approx(float(expected[name]), rel=1e-12), name
        unit = next(one.get("unit", "") for one in (*state()["variables"], *state()["derived"]) if one["name"] == name)
        assert words == write_number(float(expected[name]), unit), name


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one["id"])
def test_the_spoken_numbers_of_a_chapter_give_the_lectures_numbers(chapter):
    numbers = evaluate(dict(defaults()) | chapter["spoken"])
    for name, expected in chapter["spoken_result"].items():
        assert float(numbers[name]) == pytest.approx(expected, rel=chapter.get("result_tolerance", 2e-3)), name


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one["id"])
def test_a_chapter_names_only_what_exists(chapter):
    known = set(evaluate(dict(defaults())))
    texts = [chapter["lead"], *(step["text"] for step in chapter["steps"])]
    assert set(text_numbers(texts)) <= known
    assert set(chapter["spoken"]) <= {one["name"] for one in state()["variables"]}
    terms = {term for text in texts for term in re.findall(r"\[([^]]+)\]", text)}
    assert terms <= set(glossary())
    for picture in chapter["pictures"]:
        if picture["kind"] == "chart":
            assert {line.get("of", line["value"]) for line in picture["lines"]} <= known
            assert {point["value"] for point in picture.get("points", ())} <= known
            for step in chapter["steps"]:
                if step["picture"] == picture["id"]:
                    assert set(step["show"]) <= {line["value"] for line in picture["lines"]} | {"runs"}
                    assert step["point"] in step["show"]
    assert all(len(paragraph.split()) < 90 for text in texts for paragraph in text.split("\n\n"))


def test_four_numbers_of_a_picture_are_those_of_the_lecture_of_the_page_of_an_engine_and_of_runs():
    pictures = {picture["id"]: picture for chapter in CHAPTERS for picture in chapter["pictures"]}
    with_four = {picture["four"] for picture in pictures.values() if "four" in picture}
    assert len(with_four) == 3
    for name in with_four:
        assert {"spoken", "ideal", "engine"} == {line["view"] for line in pictures[name]["lines"]}
        assert pictures[name]["runs"] in ("seconds", "cost")


def test_measured_runs_are_slower_than_the_ideal_pass_of_their_own_batch():
    tables, ratios, of_rack = catalogue_tables(), [], []
    for model, systems in measured_runs().items():
        for system in set(systems) & set(tables["systems"]):
            values = {**tables["models"][model], **tables["systems"][system], **tables["pairs"][model][system]}
            for _, context, concurrency, seconds, chips in systems[system]:
                batch = concurrency * values["chips"] / chips
                ratios.append(seconds / float(evaluate(values | {"batch": batch, "context": context})["ideal_used"]))
                if (model, system) == (state()["model"], state()["system"]):
                    of_rack.append(ratios[-1])
    assert len(ratios) > 350
    # The text says 1.9 at best and 4.5 as usual.
    assert min(ratios) == pytest.approx(1.9, abs=0.05)
    assert np.median(ratios) == pytest.approx(4.5, abs=0.05)
    # And twelve for DeepSeek-V3 on a GB200 rack.
    assert np.median(of_rack) == pytest.approx(12.0, abs=0.5)


def test_engine_between_contexts_is_that_of_the_full_model_and_ends_with_the_context_of_the_model():
    model, system = "deepseek-ai/DeepSeek-V3", "gb200-nvl72"
    loaded, machine = load_model(model, kv="fp8"), load_system(system)  # as the engine keeps its cache
    assert engine_seconds(model, system, 1.0, 8192) == pytest.approx(engine_rows(loaded, machine)["seconds"][2][0])
    layouts = [one for one in legal(loaded, machine, 72, microbatches=(1,)) if one.pp == one.cp == 1]
    batch = float(ENGINE_BATCHES[16])
    step = decode_step(
        loaded, machine, batch=batch, context=20_000, layout=most_spread(layouts), engine=engine_for(machine)
    )  # fmt: skip
    assert engine_seconds(model, system, batch, 20_000) == pytest.approx(float(step.total), rel=0.03)
    assert np.isnan(engine_seconds(model, system, 64, 200_000))
    assert np.isnan(engine_seconds("Qwen/Qwen3-235B-A22B-FP8", "hgx-h100", 64, 100_000))
    assert not np.isnan(engine_seconds("Qwen/Qwen3-235B-A22B-FP8", "hgx-h100", 64, 32_768))


def test_every_section_and_every_card_has_its_chapter():
    assert {number for one in CHAPTERS for number in one["sections"]} == {one.number for one in lecture_content.sections()}
    assert {number for one in CHAPTERS for number in one["cards"]} == {one.number for one in lecture_content.cards()}
    assert [one["number"] for one in CHAPTERS] == list(range(1, len(CHAPTERS) + 1))
    words = sum(len(text.split()) for one in CHAPTERS for text in (one["lead"], *(step["text"] for step in one["steps"])))
    assert 2000 < words < 2700


def test_by_hand():
    # DeepSeek-V3 on a rack: 671 GB in FP8 over 72 chips of 8 TB/s; R of 4.8 PFLOP/s and 8 TB/s.
    numbers = evaluate({"total": 671e9, "active": 37e9, "weight_bytes": 1.0, "chips": 72.0, "bandwidth": 8e12, "flops": 4.8e15})
    assert float(numbers["weights"]) == pytest.approx(671e9 / 576e12)
    assert float(numbers["balance"]) == pytest.approx(300)
    assert float(numbers["best_batch"]) == pytest.approx(300 * 671 / 37)
    # 5 T parameters in FP8: eight H100 of the catalogue take 187 ms, and a rack of 72 chips of 8 TB/s 8.7 ms.
    numbers = evaluate({"large_total": 5e12, "weight_bytes": 1.0, "chips": 72.0, "bandwidth": 8e12})
    h100_bandwidth = float(load_system("hgx-h100").chip.hbm.bandwidth)
    assert float(numbers["h100_server_floor"]) == pytest.approx(5e12 / (8 * h100_bandwidth))
    assert float(numbers["h100_server_floor"]) == pytest.approx(0.187, abs=5e-4)
    assert float(numbers["h100_floor"]) == pytest.approx(float(numbers["h100_server_floor"]) / 9)
    assert float(numbers["domain_floor"]) == pytest.approx(5e12 / 576e12)
    # 70,272 B at 614 GB/s, and in 2 TB for a second, both of 1 USD/h, against 37 G multiplies at 2.4 P/s and 4 USD/h.
    numbers = evaluate({"kv_bytes": 70_272.0, "active": 37e9, "flops": 4.8e15, "rent": 4.0, "chips": 72.0})
    computing, reading, holding = 37e9 / 2.4e15 * 4, 70_272 / 614e9, 70_272 / 2e12
    assert float(numbers["dram_read"]) == pytest.approx(reading / computing)
    assert float(numbers["tenth_wait"]) == pytest.approx((0.1 * computing - reading) / holding)
    # A rack at 3 USD/h per chip for the time of a pass, over its batch.
    numbers = evaluate({"chips": 72.0, "rent": 3.0, "batch": 2400.0, "context": 1.0, "total": 671e9, "active": 37e9})
    assert float(numbers["cost"]) == pytest.approx(72 * 3 / 3600 * float(numbers["step"]) / 2400 * 1e6)


def test_one_file_has_all_and_asks_for_nothing(tmp_path):
    path = tmp_path / "lecture.html"
    done = CliRunner().invoke(app_for(["web"]), ["web", "--export", str(path)])
    assert done.exit_code == 0, done.output
    page = path.read_text(encoding="utf-8")
    assert len(page.encode()) < 1_000_000
    assert not re.findall(r'(?:src|<link[^>]+href)="(?!data:)', page)
    policy = re.search(r'http-equiv="content-security-policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        text = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert "</script" not in re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    # Chapters, claims and cards are in the file without JavaScript.
    assert page.count('<section class="chapter') == len(CHAPTERS) + 1
    assert all(f'id="{one["id"]}"' in page for one in CHAPTERS)


def test_numbers_of_the_text_multiply_and_cells_are_escaped():
    page = lecture_html(is_live=False)
    shown = {
        name: float(re.search(rf'data-name="{name}">([\d,.]+)', page)[1].replace(",", ""))
        for name in ("balance", "sparsity", "best_batch", "riders", "cost_alone")
    }
    assert shown["balance"] * shown["sparsity"] == pytest.approx(shown["best_batch"], abs=1)
    assert shown["cost_alone"] == shown["best_batch"]
    # The text names the cost of a lone token by the full engine, which claim 26 computes.
    (full_engine,) = next(claim.statement.computed for claim in lecture_content.claims() if claim.number == 26)
    assert full_engine == pytest.approx(9500, rel=0.001)
    assert f"about {round(full_engine, -2):,.0f} times" in page
    # 900 arrivals per second, a pass every 20 ms.
    assert shown["riders"] == 18
    assert not re.search(r"<td>[<>]=", page)
    assert "<td>&lt;= " in page
    assert not re.search(r"\b1 (questions|token are|times the floor)", page)


@each("context", [1, 400, 5000, 100_000])
def test_a_lone_token_costs_what_the_cost_of_its_pass_says_at_any_context(context):
    numbers = evaluate(dict(defaults()) | {"batch": 1.0, "context": float(context)})
    assert float(numbers["cost_alone"]) == pytest.approx(float(numbers["cost_over_floor"]), rel=1e-9)
    # Its own experts alone: the pass of the dashed line, over the lowest cost of a sequence.
    lowest = float(numbers["arithmetic"]) * float(numbers["lowest"])
    assert float(numbers["alone_used"]) == pytest.approx(float(numbers["ideal_used"]) / lowest, rel=1e-9)


def test_a_batch_beyond_the_corner_saves_at_most_the_factor_of_the_text():
    # DeepSeek-V3 on a GB200 rack at 400 tokens, from the best batch to the largest of the table.
    model, system = state()["model"], state()["system"]
    corner = float(evaluate(dict(defaults()))["best_batch"])
    share = engine_seconds(model, system, corner, 400) / corner
    assert share / (engine_seconds(model, system, 65_536, 400) / 65_536) == pytest.approx(2.69, abs=0.05)
    assert "In a real engine it saves up to 2.7 times" in lecture_html(is_live=False)


def pair_runs():
    tables = catalogue_tables()
    for model, systems in measured_runs().items():
        for system in systems.keys() & tables["systems"].keys():
            pair = tables["models"][model] | tables["systems"][system] | tables["pairs"][model][system]
            yield (model, system, dict(defaults()) | pair), systems[system]


def test_numbers_written_in_the_text_are_those_of_the_functions():
    text = {one["id"]: " ".join(step["text"] for step in one["steps"]) for one in CHAPTERS}
    at_200, at_20 = (best_overtraining(["hoffmann", "epoch"], 100e9, 200e12, 3 * served) for served in (200e12, 20e12))
    assert f"{at_200[0]:.0f} times Chinchilla and Epoch's refit {at_200[1]:.0f}" in text["training"]
    assert f"{at_20[1]:.0f} to {at_20[0]:.0f} times Chinchilla" in text["training"]
    balances = {one["name"]: one["value"] for one in fixed_tables()["balances"]}
    assert f"an A100 has {balances['A100 BF16']:.0f}, a B300 in FP4 {balances['B300 FP4']:.0f}" in text["batch"]
    assert max(max(one / 300, 300 / one) for one in balances.values()) < 2
    # A step of the lecture's 128,000 tokens per second, and of its two sections on prices at its ratio of 5.
    assert f"every {2000 / 128_000 * 1e3:.1f} ms" in text["trains"]
    assert float(blackboard.joint_batch_ratio(5, 1.5, 20e3, 400e3)) == pytest.approx(5, rel=0.03)
    # Measured runs over the pass that reads the experts in use.
    gaps = {
        (model, system): [
            seconds / float(evaluate(values | {"batch": batch * values["chips"] / chips, "context": context})["ideal_used"])
            for _, context, batch, seconds, chips in runs
        ]
        for (model, system, values), runs in pair_runs()
    }
    every = [gap for group in gaps.values() for gap in group]
    assert f"best takes {min(every):.1f} times the dashed line, the median {median(every):.1f} times" in text["roofline"]
    assert median(gaps[state()["model"], state()["system"]]) == pytest.approx(12, abs=0.5)
    # Drains of most chips, from 20 to 40 ms.
    drains = [one["value"] for one in fixed_tables()["drains"]]
    assert sum(0.02 <= one <= 0.04 for one in drains) == len(drains) - 1


def test_parts_of_a_sentence_stand_only_where_their_number_exists():
    assert inline("so{?knee} it is {knee}{/}.", {"knee": 2000.0}).startswith('so<span data-if="knee"> it is')
    for value in (np.inf, np.nan, -1.0):
        assert '<span data-if="knee" hidden>' in inline("{?knee}{knee}{/}", {"knee": value}), value


def test_letters_of_formulas_have_their_meaning_and_pictures_read_variables():
    page, variables = lecture_html(is_live=False), {one["name"] for one in state()["variables"]}
    assert formula_letters("floor = b N_total / (S w)").keys() == {"b", "N_total", "S", "w"}
    assert formula_letters("weights = b N_total / W").keys() == {"b", "N_total", "W"}
    letters = {letter for one in CHAPTERS for step in one["steps"] for letter in formula_letters(step["formula"])}
    assert letters == set(state()["letters"])
    assert "w: memory bandwidth of a chip" in page
    for chapter in CHAPTERS:
        assert all(set(picture.get("reads", ())) <= variables for picture in chapter["pictures"]), chapter["id"]


def test_one_description_has_one_verdict():
    verdicts: dict[str, set[str]] = {}
    for _, statement in statements():
        verdicts.setdefault(statement.name, set()).add(statement.verdict)
    assert [name for name, graded in verdicts.items() if len(graded) > 1] == []


def test_the_call_of_a_claim_runs_as_it_is_written_and_gives_the_computed_number():
    table = lecture_html(is_live=False).split('id="claims"')[1]
    codes = [html.unescape(code) for code in re.findall(r"call in Python</summary><code>(.*?)</code>", table)]
    assert len(codes) == len(lecture_content.claims())
    for claim, code in zip(lecture_content.claims(), codes, strict=True):
        names: dict[str, object] = {}
        line, call = code.split("; ", 1)
        exec(line, names)
        values = np.ravel(np.asarray(eval(call, names), dtype=float))
        np.testing.assert_allclose(values, claim.statement.computed, rtol=1e-12, err_msg=code)


@pytest.mark.thorough
def test_one_factor_and_no_reason_that_repeats_its_number():
    for place, statement in statements():
        assert statement.factor == WITHIN_FACTOR, place
        computed = between(min(statement.computed), max(statement.computed), statement.unit)
        assert not statement.reason.startswith(computed.split()[0]), (place, statement.reason)


def test_wrong_files_are_refused(tmp_path):
    with pytest.raises(DataFileError, match="cannot be written"):
        export_lecture(str(tmp_path / "missing" / "lecture.html"))
    with pytest.raises(DataFileError, match="glossary"):
        inline("a [nonsense]", {})
    with pytest.raises(UnknownName, match="closed form"):
        closed_form("optimal_bach")


def test_programs_have_no_formula_of_the_lecture():
    # Powers, logarithms and exponentials occur in scales and drawn curves alone.
    sources = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js")}
    assert set(sources) == {"state.js", "chart.js", "scenes.js", "page.js"}
    for name, text in sources.items():
        # A server, if any, is asked for its own paths only.
        assert "fetch(" not in text.replace("fetch(`api/", "").replace('fetch("api/', ""), name
        assert "innerHTML" not in text, name


@pytest.mark.slow
def test_the_stored_table_of_mixing_is_that_of_the_functions():
    for name, shares in fixed_tables()["flips"].items():
        assert [flipped_share(name, count) for count in range(1, 13)] == pytest.approx(shares[1:], abs=2e-4)


def test_a_server_gives_the_numbers_of_any_pair_and_opens_no_other_file():
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from steptime.web.app import app_for as web_app

    client = TestClient(web_app(), base_url="http://localhost")
    names = {"model": state()["model"], "system": state()["system"]}
    answer = client.get("/api/lecture/pair", params=names)
    assert answer.status_code == 200
    tables, packaged = answer.json(), catalogue_tables()
    assert tables["model"] == packaged["models"][names["model"]]
    assert tables["system"] == packaged["systems"][names["system"]]
    for part, rows in tables["engine"].items():
        assert rows == engine_tables()[part][names["model"]][names["system"]], part
    other = client.get("/api/lecture/pair", params={"model": "mixtral-8x7b", "system": "mi300x-8"})
    assert other.status_code == 200, other.text
    # Mixtral has 46.7 B parameters, of which 12.9 B are active.
    assert other.json()["model"]["total"] == pytest.approx(46.7e9, rel=0.01)
    assert other.json()["model"]["active"] == pytest.approx(12.9e9, rel=0.02)
    for wrong in ("/etc/passwd", "../../x", "{}", "x" * 300, "no-such-model", ""):
        assert client.get("/api/lecture/pair", params=names | {"model": wrong}).status_code == 422, wrong
        assert client.get("/api/lecture/pair", params=names | {"system": wrong}).status_code == 422, wrong
    assert client.get("/api/lecture/pair", params=names, headers={"sec-fetch-site": "cross-site"}).status_code == 403
