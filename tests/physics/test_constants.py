"""Constants of engines as a table: the range of each, its group, and who reads it; and what is said of a value beyond."""

from __future__ import annotations

import math

from steptime.physics.engine_parameters import CONSTANTS, DESCRIPTIONS, GROUP_BY_NAME, GROUPS, WAIT_NAMES, find_problem
from tests.conftest import each, engine

PEAK = (0.001, 1.25)  # shares of a data sheet's peak: boost clocks reach a little more than it states
SECOND = (0, 1)
RANGES = {
    "kernels": {
        **dict.fromkeys(
            (
                "memory_efficiency", "narrow_efficiency", "compute_efficiency",
                "network_efficiency",
                "fp4_efficiency", "eight_bit_efficiency", "block_efficiency", "integer_efficiency",
            ),
            PEAK,
        ),
        "timed_kernels": (0, 1),
        "unpack_rate": (1e9, math.inf),
        "latent_contexts": (1, math.inf),
        "attention_time": (0, 10),
        "exchange_time": (0, 10),
        "gathers_tokens": (0, 1),
        "chip_departure": (0, 2),
        "roofline_norm": (1, math.inf),  # below 1 overlapping would take longer than one after another
        "fill_bytes": (0, 1e5),
        "activation_traffic": (0, 4),
    },
    "overheads": dict.fromkeys(
        (
            "seconds_per_layer", "seconds_per_kernel", "seconds_per_quantised_kernel", "seconds_per_expert_layer",
            "seconds_per_latent_layer", "seconds_per_state_layer", "seconds_per_selected_layer", "seconds_per_collective",
            "seconds_per_sequence", "seconds_per_step", "top_p_seconds_per_entry", "top_p_seconds_per_sequence",
            "top_p_seconds_per_step", "seconds_per_launched_layer", "seconds_per_launched_kernel",
            "seconds_per_launched_latent_layer",
        ),
        SECOND,
    )
    | {"top_p_share": (0, 1), "graph_tokens": (0, 1e6), "launch_time": (0, 4)},
    "experts": {
        "expert_skew": (0, 10), "expert_imbalance": (1, 1e4), "expert_evenness": (0, math.inf), "expert_time": (0, 10),
        "expert_call": (0, 4), "unmeasured_expert_time": (0.1, 10), "expert_tile_rows": (0, 1024),
        "expert_tile_share": (0, 1), "seconds_per_sort": SECOND,
    },
    "scheduler": {
        "step_tokens": (0, 1e7), "prefill_first": (0, 1), "two_batch": (0, 2), "seconds_per_request": (0, 100),
        "first_token_factor": (0.001, 100), "seconds_before_queue": (0, 100), "seconds_before_queue_per_token": SECOND,
        "steps_before_answer": (0, 1e5), "steps_to_balance": (0, 1e5), "seconds_to_start": (0, 1e4),
    },
    "room": {
        "reserved_bytes": (0, 1e13), "collective_bytes": (0, 1e13), "sampling_bytes": (0, 1e3), "memory_share": (0.001, 1),
        "small_kv": (0, 1),
    },
}  # fmt: skip
EACH = [(group, name, *bounds) for group, table in RANGES.items() for name, bounds in table.items()]


def test_every_constant_has_a_range_here():
    assert {name for _, name, _, _ in EACH} == set(CONSTANTS)
    assert set(RANGES) == set(GROUPS)


@each("group, name, least, most", EACH)
def test_a_constant_is_refused_beyond_its_range(group, name, least, most):
    assert GROUP_BY_NAME[name] == group
    inside = (least, most, max(least, min(most, 1)))
    assert [find_problem(name, value) for value in inside] == [""] * 3
    assert find_problem(name, least - 1e-6)
    assert math.isinf(most) or find_problem(name, most * 1.001 + 1e-9)
    assert find_problem(name, math.nan)
    default = getattr(getattr(engine(), group), name)
    assert least <= default <= most or (name, default) == ("expert_imbalance", 0)  # off: computed from the skew
    assert DESCRIPTIONS[name]["default"] == default
    assert not find_problem(name, default)


@each(
    "name, value, says",
    [
        ("roofline_norm", 0.5, "must be at least 1 (p of the p-norm"),
        ("expert_imbalance", 0.5, "must be 0 or from 1 to 10000 (rows on the busiest"),
        ("seconds_per_step", -1, "must be from 0 to 1 (time of host work per step [s per step]), got -1"),
        ("seconds_per_request", 101, "must be from 0 to 100 (delay of a request before its prefill"),
        ("memory_share", 1.5, "must be from 0.001 to 1 (share of the remaining memory"),
        ("memory_share", True, "must be a number, got True"),
        ("memory_share", "x" * 50, "must be a number, got 'xxx"),
        ("memory_share", None, "must be a number, got None"),
    ],
)
def test_what_is_said_of_it(name, value, says):
    assert find_problem(name, value).startswith(says)


@each(
    "reader, names",
    [
        ("simulator", {"step_tokens"}),
        ("plan, simulator", set(WAIT_NAMES)),
        ("plan", {"two_batch"}),
        ("runs", {"seconds_per_request", "first_token_factor", "seconds_to_start"}),
        ("plan, runs", {"small_kv"}),
        ("simulator, runs", {"prefill_first"}),
    ],
)
def test_who_reads_a_constant(reader, names):
    assert {name for name, told in DESCRIPTIONS.items() if told["read_by"] == reader} == names


def test_every_step_reads_the_others():
    others = {name for name, told in DESCRIPTIONS.items() if told["read_by"] == "step"}
    assert others == set(CONSTANTS) - set(RANGES["scheduler"]) - {"small_kv"}


UNITS = {
    "share": {name for name, bounds in RANGES["kernels"].items() if bounds == PEAK}
    | {"activation_traffic", "memory_share", "expert_call", "top_p_share", "expert_tile_share"},
    "exponent": {"chip_departure"},
    "": {"roofline_norm", "expert_skew"},
    "weights/s": {"unpack_rate"},
    "sequences": {"latent_contexts"},
    "factor": {
        "expert_imbalance",
        "first_token_factor",
        "expert_time",
        "unmeasured_expert_time",
        "attention_time",
        "exchange_time",
        "launch_time",
    },
    "shape": {"expert_evenness"},
    "tokens": {"step_tokens", "graph_tokens"},
    "rows": {"expert_tile_rows"},
    "0 or 1": {"prefill_first", "small_kv", "timed_kernels", "gathers_tokens"},
    "0, 1 or 2": {"two_batch"},
    "decode steps": {"steps_before_answer", "steps_to_balance"},
    "B": {"reserved_bytes", "collective_bytes", "sampling_bytes", "fill_bytes"},
    "s per request": {"seconds_per_request", "seconds_before_queue"},
    "s per prompt token": {"seconds_before_queue_per_token"},
    "s per phase": {"seconds_per_collective"},
    "s per kernel": {"seconds_per_kernel", "seconds_per_quantised_kernel", "seconds_per_launched_kernel"},
    "s per token": {"seconds_per_sequence", "top_p_seconds_per_sequence"},
    "s per entry": {"top_p_seconds_per_entry"},
    "s per step": {"seconds_per_step", "top_p_seconds_per_step"},
    "s per run": {"seconds_to_start"},
}


def test_units_of_constants():
    found: dict[str, set[str]] = {}
    for name, told in DESCRIPTIONS.items():
        found.setdefault(told["unit"], set()).add(name)
    layers = {name for name in RANGES["overheads"] if name.endswith("_layer")}
    assert found == UNITS | {"s per layer": {*layers, "seconds_per_sort"}}


def test_meanings_of_constants_follow_an_article():
    """The causes of a range are "from the" and the meaning, without the line of another constant above it."""
    assert not [name for name, told in DESCRIPTIONS.items() if told["line"].startswith(("the ", "a ", "an "))]
