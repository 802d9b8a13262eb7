"""Rows that cannot be right: weights, physics, and drafts that no column tells."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from steptime.physics.engine import IDEAL, with_constants
from steptime.validation.predictions import predict
from steptime.validation.run_table import read_runs
from tests.conftest import each, every
from tests.validation.rows import SHARED, deepseek, plain

CLIENTS = (4, 8, 16, 32, 64, 128)


def sweep(**changes: str) -> list[dict[str, str]]:
    return [deepseek(id=f"c{c}", concurrency=str(c), **changes) for c in CLIENTS]


def as_measured(rows: list[dict[str, str]], slower: float = 1.0, **changes: str) -> list[dict[str, str]]:
    """The rows with the times that are predicted for them, and other columns."""
    found = predict(rows, by_simulation=False)
    times = zip(rows, slower * found.tpot, found.ttft, strict=True)
    return [row | {"tpot_s": f"{tpot:.6g}", "ttft_s": f"{ttft:.6g}"} | changes for row, tpot, ttft in times]


def reasons(rows: list[dict[str, str]]) -> list[str]:
    return list(predict(rows, by_simulation=False).reason)


def test_weights_are_held_against_what_the_engine_uses_of_a_chip():
    """141.1 GB of a 70-B model in bf16: not on one H100, on two and on one B200; 730 GB on four B200 are in doubt."""
    heavy = plain(model="llama-3.1-70b")
    alone, halved, four = reasons([heavy, heavy | {"tp": "2"}, heavy | {"tp": "4"}])
    assert alone == "cannot be right: weights do not fit: 141.1 GB on chips of 85.5 GB, of which vllm uses 78.7"
    assert halved == four == ""
    tight, larger = reasons([deepseek(dp="4", tp="1", ep="4"), heavy | {"system": "hgx-b200"}])
    assert tight.startswith("in doubt: weights do not fit: 182.6 GB on chips of 192.2 GB, of which sglang uses 174.9")
    assert larger == ""


def test_a_row_that_cannot_be_right_is_still_predicted():
    found = predict([plain(model="llama-3.1-70b")], by_simulation=False)
    assert np.isfinite(found.tpot[0])


def test_no_token_is_sooner_than_its_weights_are_read():
    """One H100 reads 15.0 GB of weights in 4.5 ms."""
    slow, fast = reasons([plain(tpot_s="0.0047", concurrency="1"), plain(tpot_s="0.0044", concurrency="1")])
    assert slow == ""
    assert fast.startswith("cannot be right: faster than physics: a token took 4.4 ms, at least 4.5")
    assert fast.endswith("ms with 1 request in flight")


def test_no_request_is_sooner_than_its_loop_turns_round():
    """64 prompts of 8192 tokens take one H100 some 9 s and more: they are not answered in 2.5 s, as prompts in a cache are."""
    row = plain(input_tokens="8192", output_tokens="128", concurrency="64", tpot_s="0.016", ttft_s="0.5")
    assert reasons([row])[0].startswith("cannot be right: faster than physics: a request took 2.53 s, at least ")
    assert reasons([row | {"ttft_s": "40"}]) == [""]


def test_the_ideal_engine_breaks_no_bound():
    rows = (
        [plain(concurrency=str(c), tp=tp) for c in (1, 16, 256) for tp in ("1", "8")] + sweep() + sweep(dp="8", tp="1", ep="8")
    )
    found = predict(rows, engine=IDEAL, by_simulation=False)
    times = zip(rows, found.tpot, found.ttft, strict=True)
    made = [row | {"tpot_s": f"{tpot:.6g}", "ttft_s": f"{ttft:.6g}"} for row, tpot, ttft in times]
    told = predict(made, engine=with_constants(IDEAL, {"expert_imbalance": 1.0}), by_simulation=False).reason
    assert not [reason for reason in told if "physics" in reason]


@pytest.mark.parametrize(("drafts", "slower"), every(4, [("1", 1.0), ("2", 0.95), ("2", 1.1), ("3", 1.0)]))
def test_runs_with_drafts_that_are_recorded_as_plain_are_named(drafts, slower):
    """With few clients by themselves, with many as others of their set are; the same rows with their drafts told are right."""
    drafted = as_measured(sweep(drafted=drafts), slower)
    assert reasons(drafted) == [""] * len(CLIENTS)
    found = reasons([row | {"drafted": ""} for row in drafted])
    assert all(reason.startswith("cannot be right: looks speculative") for reason in found)
    assert "of the time predicted without speculative tokens" in found[0]


@each("slower", [0.8, 1.0, 1.3])
def test_plain_runs_are_not(slower):
    assert reasons(as_measured(sweep(), slower)) == [""] * len(CLIENTS)


def test_a_run_that_says_that_nothing_was_drafted_is_taken_at_its_word():
    rows = as_measured(sweep(drafted="2"), drafted="", spec="none")
    assert reasons(rows) == [""] * len(CLIENTS)


def test_a_model_without_layers_that_draft_is_never_like_a_drafted_run():
    rows = [plain(model="llama-3.1-70b", tp="8", concurrency=str(c)) for c in CLIENTS]
    assert reasons(as_measured(rows, 0.6)) == [""] * len(CLIENTS)


@pytest.mark.thorough
@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured runs are not beside this checkout")
def test_the_runs_that_were_matched_to_drafted_ones_are_found():
    """Of 67 runs of DeepSeek-R1 that match drafted ones or are of their version, 43 and more; of its others none."""
    rows, _ = read_runs(SHARED / "serving.csv")
    with (SHARED / "serving_drafted.csv").open(newline="") as file:
        verdicts = {row["id"]: row["verdict"] for row in csv.DictReader(file)}
    found = predict(rows, by_simulation=False).reason
    like = {row["id"] for row, reason in zip(rows, found, strict=True) if "looks speculative" in reason}
    truth = {name for name, verdict in verdicts.items() if verdict.startswith("mtp")}
    assert len(truth) == 67
    assert len(like & truth) >= 43
    of_model = {row["id"] for row in rows if row["model"].endswith("DeepSeek-R1")}
    assert len((like & of_model) - set(verdicts)) <= 3


def test_chips_that_are_no_whole_number_of_replicas_are_named():
    whole, part, few = reasons([deepseek(chips="16"), deepseek(chips="12"), deepseek(chips="4")])
    assert whole == ""
    assert part == "cannot be right: 12 chips are not a multiple of the 8 chips of a replica"
    assert few == "cannot be right: 4 chips are not a multiple of the 8 chips of a replica"


def test_a_run_slower_than_those_with_more_clients_is_in_doubt_alone():
    """A token does not come sooner because others wait too: one run of a series that says so is the one in doubt."""
    rows = as_measured([plain(id=f"c{c}", concurrency=str(c)) for c in CLIENTS])
    assert set(reasons(rows)) == {""}
    rows[1]["tpot_s"] = str(2 * float(rows[-1]["tpot_s"]))
    found = reasons(rows)
    assert found[1].startswith("in doubt: slower with fewer clients: ")
    assert {text for i, text in enumerate(found) if i != 1} == {""}
    rows[1] |= {"engine_version": "another"}  # of another day or software it contradicts nothing
    assert set(reasons(rows)) == {""}


def test_a_series_that_contradicts_itself_twice_is_in_doubt_whole():
    rows = as_measured([plain(id=f"c{c}", concurrency=str(c)) for c in CLIENTS])
    for i in (0, 2):
        rows[i]["tpot_s"] = str(2 * float(rows[i + 1]["tpot_s"]))
    assert all(text.startswith("in doubt: slower with fewer clients: ") for text in reasons(rows))
