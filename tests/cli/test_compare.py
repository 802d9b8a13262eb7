"""`steptime compare` as a user types it."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from steptime.cli.views.comparison_view import ranking_view
from steptime.hardware.system import Rent
from steptime.sweeps.ranking import Ranking, Standing
from steptime.workload.workload import Slo, Workload
from tests.cli.test_commands import run
from tests.conftest import each, every

ASKED = "compare llama-3.3-70b hgx-h100,hgx-b200,l4-8 --input 2k --output 500 --speed 40 --ttft 1"


@pytest.mark.slow
@pytest.mark.parametrize("columns", every(3, [80, 120, 160]))
def test_the_answer_comes_first_then_a_table_a_picture_and_what_would_flip_it(columns):
    found = run(ASKED + " --full", columns=columns)
    assert found.returncode == 0
    lines = found.stdout.splitlines()
    assert lines[0].startswith("hgx-b200 serves ")
    assert all(len(line) <= columns for line in lines)
    text = " ".join(found.stdout.split())
    for words in (
        "2,000 tokens in, 500 out on average; at least 40.0 tok/s per user; first token within 1.00 s.",
        "USD per million output tokens, 90 % ranges",
        "rent: both cost the same if hgx-h100 rents for",
        "engine: with sglang on both: ",
        "No plan l4-8: no layout on 8 chips reaches 40.0 tok/s per user",
    ):
        assert words in text
    assert " ≈ " in found.stdout
    assert found.stdout.count("●") == 3  # two figures, and what the mark means


@pytest.mark.slow
def test_json_and_csv_hold_the_same_figures(tmp_path):
    found = run(f"{ASKED} --json --csv {tmp_path / 'a.csv'}")
    data = json.loads(found.stdout)
    assert data["schema"] == "steptime.ranking/2"
    assert [one["system"] for one in data["standings"]] == ["hgx-b200", "hgx-h100", "l4-8"]
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert len(rows) == 4
    assert str(data["standings"][0]["usd_per_million_output_tokens"]) in rows[1]


@pytest.mark.slow
def test_answer_fits_forty_lines():
    assert len(run(ASKED).stdout.splitlines()) <= 40


@pytest.mark.slow
def test_chips_of_some_years_and_makers():
    data = json.loads(run("compare llama-3.1-8b --vendor nvidia,AMD --year 2022..2023 --speed 40 --json").stdout)
    assert {one["vendor"] for one in data["standings"]} == {"NVIDIA", "AMD"}
    assert {one["year"] for one in data["standings"]} == {2022, 2023}


def test_nothing_that_meets_the_limits_is_an_answer_with_exit_code_1():
    found = run("compare llama-3.3-70b l4-8 --speed 400")
    assert found.returncode == 1
    assert found.stdout.startswith("No plan meets the limits: no layout on 8 chips reaches 400")
    assert run("compare llama-3.3-70b l4-8,a10-8 --speed 400").stdout.startswith("No plan meets the limits, for 2 pairs")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("llama-3.3-70b hgx-h100,,hgx-b200", "has nothing between two commas, or at an end"),
        ("llama-3.3-70b hgx-h10", "did you mean hgx-h100"),
        ("llama-3.3-70b --year 20x", "--year takes 2024, 2022..2024 or 2024.., not '20x'"),
        ("llama-3.3-70b --year 2025..2022", "--year 2025..2022 ends before it begins"),
        ("llama-3.3-70b hgx-h100 --sure 0.9", "needs a limit, got none"),
        ("llama-3.3-70b hgx-b200 --vendor AMD", "no system matches --vendor AMD"),
        ("llama-3.3-70b --year 2031..", "the years of the chips are 2020 to 2027"),
        ("llama-3.3-70b --vendor NVIDA", "did you mean NVIDIA"),
        ("llama-3.3-70b hgx-h100 --chips many", "--chips: 'many' is not a number"),
        ("llama-3.3-70b hgx-b200,hgx-h20 --rent ondemand", "none of the 2 systems has a rent of kind ondemand"),
        ("llama-3.3-70b hgx-b200 --rent ondemand", "known: contract"),
        ("llama-3.3-70b hgx-h100 --mode both", "Known: aggregated, disaggregated, any"),
        ("llama-3.3-70b hgx-h100 --csv /nowhere/a.csv", "its folder does not exist"),
        ("llama-3.3-70b hgx-h100 --json --full", "--full needs text"),
    ],
)
def test_wrong_input_gets_one_message_and_exit_code_2(words, says):
    found = run(f"compare {words}")
    assert found.returncode == 2
    assert says in " ".join((found.stderr or found.stdout).split())


PAIRED = "compare llama-3.1-8b hgx-h100,hgx-h200 --pairs --input 2k --output 256 --speed 50 --ttft 1 "


@pytest.mark.thorough
def test_pairs_of_systems_stand_next_to_single_systems(closed_forms):
    found = run(PAIRED + "--chips 8 --json")
    assert found.returncode == 0, found.stderr
    rows = {(row["prefill_system"], row["system"]): row for row in json.loads(found.stdout)["standings"]}
    assert set(rows) == {("", "hgx-h100"), ("", "hgx-h200"), ("hgx-h100", "hgx-h200"), ("hgx-h200", "hgx-h100")}
    for (prefill, system), row in rows.items():
        assert row["feasible"]
        assert row["chips"] == 8 + row["prefill_chips"]
        assert (row["prefill_chips"] > 0, row["quick"]) == (bool(prefill), bool(prefill))
        assert row["label"] == (f"{prefill} (prefill) + {system}" if prefill else "")


@each(
    "words, message",
    [
        ("compare llama-3.1-8b all --pairs", "--pairs: at most 12 pairs of systems"),
        ("compare llama-3.1-8b hgx-h100 --pairs", "--pairs: need two systems of one vendor"),
        ("compare llama-3.1-8b hgx-h100,mi300x-8 --pairs", "--pairs: need two systems of one vendor"),
        (PAIRED + "--chips any", "--pairs: need a number of chips"),
        (PAIRED + "--mode aggregated", "--pairs: have separate pools"),
    ],
)
def test_pairs_that_cannot_be_tried_are_refused_before_the_work(words, message):
    refused = run(words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr


# --- fleets for a rate, and sessions ------------------------------------------------------------------------------------

SMALL = "--input 1k --output 256 --speed 40 --ttft 1 --chips 2"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "load",
    [
        "--rate 30 --spare 1",
        pytest.param("--tokens-per-day 1.2G", marks=pytest.mark.thorough),
        pytest.param("--rate 12 --sessions chat", marks=pytest.mark.slow),
    ],
)
def test_row_of_one_system_has_the_figures_of_its_plan(load, both_forms):
    options = f"{SMALL.replace('--input 1k --output 256', '')} {load}" if "sessions" in load else f"{SMALL} {load}"
    compared = run(f"compare llama-3.1-8b hgx-h100 {options} --json")
    assert compared.returncode == 0, compared.stderr
    answer = json.loads(compared.stdout)
    row, plan = answer["standings"][0], json.loads(run(f"plan llama-3.1-8b hgx-h100 {options} --json").stdout)
    fleet = plan["fleet"]
    assert {name: row[name] for name in ("usd_per_month", "replicas", "replica_chips", "hosts", "utilisation")} == {
        name: fleet[name] for name in ("usd_per_month", "replicas", "replica_chips", "hosts", "utilisation")
    }
    assert row["fleet_chips"] == fleet["chips"]
    assert answer["rate_requests_per_s"] == fleet["rate_requests_per_s"]
    assert row["usd_per_million_output_tokens_at_rate"] == fleet["usd_per_million_output_tokens"]
    for name in ("usd_per_million_output_tokens", "usd_per_million_output_tokens_range", "ttft_s", "layout"):
        assert row[name] == plan[name], name
    low, high = row["usd_per_month_range"]
    assert low <= row["usd_per_month"] <= high
    if "sessions" in load:
        cache = plan["session_cache"]
        assert [row[name] for name in ("hit_share", "load_s", "needed_bytes")] == [
            cache[name] for name in ("hit_share", "load_s", "needed_bytes")
        ]
        assert all(tier["name"] in row["hits_text"] for tier in cache["tiers"] if tier["hit_share"] > 0)


@each(
    "words, message",
    [
        ("compare llama-3.1-8b hgx-h100 --spare 1", "--spare: only a fleet has spare replicas"),
        ("compare llama-3.1-8b hgx-h100 --rate 3 --tokens-per-day 1M", "--tokens-per-day: sets the rate"),
        ("compare llama-3.1-8b hgx-h100 --sessions chat --tokens-per-day 1M", "--tokens-per-day: histories of sessions"),
        ("compare llama-3.1-8b hgx-h100 --rate 0", "--rate"),
        ("compare llama-3.1-8b hgx-h100 --prefix-cache host=1TB", "--prefix-cache: holds the histories of sessions"),
        ("compare llama-3.1-8b hgx-h100 --sessions chat --cached 0.5", "--cached: sessions give the cached share"),
        (PAIRED + "--rate 3", "--pairs: have no rate"),
        ("plan llama-3.1-8b hgx-h100 --rate 3 --tokens-per-day 1M", "--tokens-per-day: sets the rate"),
    ],
)
def test_loads_that_contradict_each_other_are_refused(words, message):
    refused = run(words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in " ".join(refused.stderr.split())


@each(
    "words, cause",
    [
        ("--percentile p93", "unknown percentile 'p93'"),
        ("--evidence mesured", "did you mean measured?"),
        ("--sessions chat --prefix-cache hosts=1TB", "unknown memory tier 'hosts'"),
        ("--sessions chat --think-time -5", "--think-time must be at least 0 s"),
        ("--sessions chat --system-prompt -5", "--system-prompt must be at least 0 tokens"),
        ("--think-time 5", "only sessions have one"),
    ],
)
def test_a_wrong_input_of_all_pairs_is_an_error_not_a_reason(words, cause):
    """Such an input was the reason of a pair without a plan, with exit code 1."""
    shown = run(f"compare llama-3.1-8b hgx-h100 {words}")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert cause in shown.stderr


def standing(system: str, cost: float, place: int, replicas: int) -> Standing:
    """Return a row of a fleet."""
    return Standing(
        place=place, model="m", system=system, vendor="v", year=2025, feasible=True, usd_per_month=cost, replicas=replicas,
        replica_chips=2, hosts=replicas, fleet_chips=2 * replicas, utilisation=0.5, tokens_per_second_per_user=20.0, ttft=1.0,
        chips=2, mode="aggregated",
    )  # fmt: skip


def printed(ranking: Ranking, *, full: bool) -> str:
    """Return the text of a ranking."""
    console = Console(file=io.StringIO(), width=160)
    console.print(replace(ranking_view(ranking, width=160, full=full), full=full))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("cost", "is_far"), [(9.9e4, False), (10.1e4, True)])
def test_a_row_above_ten_times_the_first_cost_is_named_and_cut(cost, is_far):
    ranking = Ranking(
        workload=Workload(input_tokens=4096, output_tokens=1024), slo=Slo(), rate=4.0,
        standings=(standing("near", 1e4, 1, 2), standing("remote", cost, 2, 5105)),
    )  # fmt: skip
    short, full = (printed(ranking, full=is_full) for is_full in (False, True))
    assert ("remote costs more than 10 times the first: see --full." in short) == is_far
    # Its replicas are in the table.
    assert ("5,105" in short) != is_far
    assert any(line.lstrip().startswith("2") and "remote" in line for line in full.splitlines())
    assert any(line.lstrip().startswith("2") and "remote" in line for line in short.splitlines()) != is_far
    # 4 requests/s of 5,120 tokens for 86,400 s are 1.77 B tokens; 1,024 of 5,120 are output.
    assert "1.77 B tokens a day, 20 % of them output" in " ".join(short.split())


@pytest.mark.parametrize(("kind", "is_unlike"), [("contract", False), ("ondemand", True)])
def test_rents_of_one_kind_with_other_terms_are_alike(kind, is_unlike):
    rows = (
        replace(standing("near", 1e4, 1, 2), rent=Rent(kind="contract", term="three-year")),
        replace(standing("next", 1.1e4, 2, 2), tied=True, rent=Rent(kind=kind, term="capacity-block")),
    )
    ranking = Ranking(workload=Workload(input_tokens=4096, output_tokens=1024), slo=Slo(), rate=4.0, standings=rows)
    assert any("several kinds" in note for note in ranking.notes) == is_unlike


def test_pairs_without_a_rent_say_how_many_have_another_kind():
    rents = ("ondemand", "ondemand", *[""] * 7)
    unpriced = tuple(
        replace(standing(f"s{n}", math.nan, 0, 2), other_rents=(kind,) if kind else ()) for n, kind in enumerate(rents)
    )
    first = replace(standing("near", 1e4, 1, 2), rent=Rent(kind="contract"))
    ranking = Ranking(
        workload=Workload(input_tokens=4096, output_tokens=1024), slo=Slo(), rate=4.0, standings=(first, *unpriced)
    )
    assert "9 pairs without a contract rent, 2 of them with --rent ondemand" in " ".join(printed(ranking, full=False).split())
