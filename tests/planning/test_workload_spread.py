"""Contexts of unequal requests against integrals over their log-normal lengths, and first tokens at a percentile."""

from __future__ import annotations

import math

import numpy as np
import pytest

import steptime as st
from steptime.planning.slo_probability import percentile_ratio, target_levels
from steptime.planning.steady_state import context_deviation, longer_prefix, mean_context
from tests.planning.cases import equal_requests


def log_normal(mean: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of lengths and the probability of a longer one."""
    sigma = math.sqrt(math.log1p(spread**2))
    normal = np.linspace(-9, 12, 40_001)
    longer = np.array([math.erfc(z / math.sqrt(2)) / 2 for z in normal])
    return np.append(0.0, mean * np.exp(sigma * normal - sigma**2 / 2)), np.append(1.0, longer)


@pytest.mark.parametrize(("spread", "input_spread"), [(0.3, 0.0), (1.0, 0.5), (2.0, 1.5)])
def test_contexts_are_those_that_a_step_meets(spread, input_spread):
    """At a time, the tokens made so far have the density P(output is longer) / E[output]."""
    requests = st.Workload(input_tokens=1000, output_tokens=300, input_spread=input_spread, output_spread=spread)
    tokens, longer = log_normal(300, spread)
    first, second = (float(np.trapezoid(tokens**power * longer / 300, tokens)) for power in (1, 2))
    assert float(mean_context(requests)) == pytest.approx(1000 + first, rel=1e-4)
    variance = (input_spread * 1000) ** 2 + second - first**2
    assert float(context_deviation(requests)) == pytest.approx(math.sqrt(variance), rel=1e-3)


def test_equal_requests_have_contexts_between_their_input_and_their_end():
    requests = equal_requests(input_tokens=1000, output_tokens=120)
    assert float(mean_context(requests)) == 1060.0
    assert float(context_deviation(requests)) == pytest.approx(120 / math.sqrt(12))


@pytest.mark.parametrize("cached", [0.0, 0.4])
def test_pairs_of_unequal_prompts_are_those_of_the_mean_prompt_times_their_mean_square(cached):
    """A prompt of m cached and n new tokens has n m + n^2 / 2 pairs, and the chunk with its mean prefix n (m + n / 2)."""
    requests = st.Workload(input_tokens=1000, output_tokens=1, cached_share=cached, input_spread=1.5)
    sigma = math.sqrt(math.log1p(1.5**2))
    normal = np.linspace(-9, 12, 40_001)
    prompts = 1000 * np.exp(sigma * normal - sigma**2 / 2)
    density = np.exp(-np.square(normal) / 2) / math.sqrt(2 * math.pi)
    new = (1 - cached) * prompts
    pairs = float(np.trapezoid((new * cached * prompts + np.square(new) / 2) * density, normal))
    fresh = 1000 * (1 - cached)
    assert 1000 - fresh + fresh / 2 + float(longer_prefix(requests)) == pytest.approx(pairs / fresh, rel=1e-4)


@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(("percentile", "quantile"), [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)])
def test_a_first_token_at_a_percentile_is_that_of_a_log_normal(spread, percentile, quantile):
    """Prompts of variance spread^2 and waits of 0.5, over the squared mean; never sooner than the mean."""
    requests = st.Workload(input_tokens=1000, output_tokens=1, input_spread=spread, output_spread=0.0)
    times, later = log_normal(1.0, math.sqrt(spread**2 + 0.5))
    expected = times[np.searchsorted(-later, -(1 - quantile))]
    assert percentile_ratio(requests, percentile) == pytest.approx(max(1.0, float(expected)), rel=1e-3)
    assert percentile_ratio(requests, "mean") == 1.0


def test_targets_of_means_are_below_the_limits_at_a_percentile():
    requests, limits = st.Workload(input_tokens=1000, output_tokens=100), st.Slo(ttft=2.0, tpot=0.02)
    ratio = percentile_ratio(requests, "p90")
    assert target_levels(requests, limits, "p90", simulated=False) == [st.Slo(ttft=2.0 / ratio, tpot=0.02)]
    assert target_levels(requests, limits, "mean", simulated=False) == [limits]
    # Where finalists are simulated: a fifth of the way from the mean to the percentile, all of it, and nearly twice as far.
    levels = target_levels(requests, limits, "p90", simulated=True)
    assert [level.ttft for level in levels] == pytest.approx([2 / (1 + share * (ratio - 1)) for share in (0.2, 1.0, 1.9)])
    assert {level.tpot for level in levels} == {0.02}
    assert levels[0].ttft > levels[1].ttft > levels[2].ttft
    # A mean also has finalists with less wait, as of a percentile half as long again.
    assert [level.ttft for level in target_levels(requests, limits, "mean", simulated=True)] == pytest.approx(
        [2 / 1.1, 2 / 1.5, 2 / 1.95]
    )
    # At p99 the first two are far apart (1 + 0.2 x 4.9 and 5.9): a level at half the way follows.
    far = percentile_ratio(requests, "p99") - 1
    assert [level.ttft for level in target_levels(requests, limits, "p99", simulated=True)] == pytest.approx(
        [2 / (1 + share * far) for share in (0.2, 1.0, 1.9, 0.5)]
    )
    assert {level.ttft for level in target_levels(requests, st.Slo(), "p99", simulated=True)} == {math.inf}
