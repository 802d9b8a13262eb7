"""Sobol's indices: against closed forms of Ishigami's function and of sums, their laws, and SALib."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

pytest.importorskip("scipy")

from steptime.sweeps import variance_shares
from steptime.sweeps.parameter_ranges import Unsure
from steptime.sweeps.sensitivity import sensitivity

A, B = 7.0, 0.1


def ishigami(x1, x2, x3):
    """Ishigami and Homma 1990."""
    return np.sin(x1) + A * np.sin(x2) ** 2 + B * x3**4 * np.sin(x1)


def found_of(function, inputs, samples=4096, seed=0):
    drawn = variance_shares.rows(samples, inputs, seed)
    return variance_shares.indices(function(*np.moveaxis(drawn, -1, 0)), seed)


def wide(function):
    return lambda *shares: function(*(np.pi * (2 * share - 1) for share in shares))


def test_ishigami_as_its_variance_is_known_by_hand():
    variance = A**2 / 8 + B * np.pi**4 / 5 + B**2 * np.pi**8 / 18 + 0.5
    alone = [0.5 * (1 + B * np.pi**4 / 5) ** 2, A**2 / 8, 0.0]
    both = B**2 * np.pi**8 * (1 / 18 - 1 / 50)  # of the first and the third together
    first = np.array(alone) / variance
    total = np.array([alone[0] + both, alone[1], both]) / variance
    assert first == pytest.approx([0.3139, 0.4424, 0], abs=1e-4)
    assert total == pytest.approx([0.5576, 0.4424, 0.2437], abs=1e-4)
    found = found_of(wide(ishigami), 3)
    assert found.variance == pytest.approx(variance, rel=0.02)
    assert found.first == pytest.approx(first, abs=0.02 * 0.5)
    assert found.total == pytest.approx(total, rel=0.02)
    for told, known in ((found.first_range, first), (found.total_range, total)):
        assert np.all(told[0] < known)
        assert np.all(known < told[1])


def test_a_sum_has_no_share_that_inputs_make_together():
    weights = np.array([1.0, 2.0, 3.0])
    found = found_of(lambda *shares: sum(w * share for w, share in zip(weights, shares, strict=True)), 3)
    share = weights**2 / np.sum(weights**2)
    assert found.first == pytest.approx(share, abs=0.01)
    assert found.total == pytest.approx(share, abs=0.01)
    assert found.variance == pytest.approx(np.sum(weights**2) / 12, rel=0.01)


def test_a_product_as_by_hand():
    """Of two even shares: V(xy) = (1/9 - 1/16), V(E(xy|x)) = 1/48."""
    found = found_of(lambda x, y: x * y, 2)
    assert found.first == pytest.approx([(1 / 48) / (7 / 144)] * 2, abs=0.01)
    assert found.total == pytest.approx([1 - (1 / 48) / (7 / 144)] * 2, abs=0.01)


@pytest.mark.slow
@settings(max_examples=25)
@given(some.lists(some.floats(-3, 3), min_size=4, max_size=4), some.integers(0, 1000))
def test_first_is_at_most_total_and_firsts_add_up_to_one_at_most(weights, seed):
    a, b, c, d = weights
    found = found_of(lambda x, y, z: a * x + b * np.exp(y) + c * x * z + d * np.sin(6 * z * y), 3, 1024, seed)
    noise = np.max(found.first_range[1] - found.first_range[0]) + 0.02
    assert np.all(found.total >= 0)
    assert np.all(found.first <= found.total + noise)
    assert found.first.sum() <= 1 + 3 * noise


def test_what_is_always_the_same_has_no_indices():
    found = found_of(lambda x, y: np.full(x.shape, 3.0), 2, 64)
    assert not found.first.any()
    assert not found.total.any()


def test_the_same_seed_draws_the_same_and_another_does_not():
    first, again, other = (variance_shares.rows(16, 2, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert 0 < first.min() < first.max() < 1


def test_values_have_the_points_that_their_range_states():
    rate = Unsure(name="rate", description="", low=1.0, base=2.0, high=8.0, basis="")
    values = rate.values(variance_shares.rows(4096, 1, 0)[0, :, 0])
    assert np.quantile(values, [0.05, 0.5, 0.95]) == pytest.approx([1, 2, 8], rel=0.02)
    even = Unsure(name="rent", description="", low=1.0, base=3.0, high=3.0, basis="", even=True)
    assert even.values(np.array([0.0, 0.5, 1.0])).tolist() == [1.0, 2.0, 3.0]
    batch = Unsure(name="batch", description="", low=0.2, base=1.0, high=4.0, basis="", is_count=True)
    assert set(batch.values(np.linspace(0.05, 0.95, 50))) == {1.0, 2.0, 3.0, 4.0}


def test_swings_of_a_sum_are_its_shares():
    inputs = [
        Unsure(name=n, description="", low=-w, base=0.0, high=w, basis="", even=True) for n, w in (("a", 3.0), ("b", 4.0))
    ]
    points = variance_shares.points(inputs)
    answers = points["a"] + points["b"]
    alone = variance_shares.deviations(answers[1::2], answers[2::2], np.array([one.deviations for one in inputs]))
    assert alone == pytest.approx([3 / 3**0.5, 4 / 3**0.5])
    assert variance_shares.shares(alone) == pytest.approx([0.36, 0.64])


@pytest.mark.slow
class TestSalib:
    """SALib 1.5 and later, an implementation of the same papers."""

    @staticmethod
    def theirs(names, answers):
        """Return the indices of the same answers, in the order in which SALib has them."""
        analyze = pytest.importorskip("SALib.analyze.sobol")
        inputs = len(names)
        order = [0, *range(2, inputs + 2), 1]  # A, A with each column of B, B: of each row
        problem = {"num_vars": inputs, "names": names, "bounds": [[0, 1]] * inputs}
        return analyze.analyze(problem, answers[order].T.ravel(), calc_second_order=False, seed=1)

    def test_the_same_answers_have_the_same_indices(self):
        drawn = variance_shares.rows(2048, 3, 3)
        answers = wide(ishigami)(*np.moveaxis(drawn, -1, 0))
        mine, theirs = variance_shares.indices(answers, 3), self.theirs(["a", "b", "c"], answers)
        assert mine.first == pytest.approx(theirs["S1"], abs=1e-9)
        assert mine.total == pytest.approx(theirs["ST"], abs=1e-9)
        half = (mine.first_range[1] - mine.first_range[0]) / 2  # of 90 %; theirs of 95 %
        assert half * 1.96 / 1.645 == pytest.approx(theirs["S1_conf"], rel=0.35)

    def test_ishigami_as_salib_samples_it(self):
        sample = pytest.importorskip("SALib.sample.sobol")
        analyze = pytest.importorskip("SALib.analyze.sobol")
        problem = {"num_vars": 3, "names": ["a", "b", "c"], "bounds": [[-np.pi, np.pi]] * 3}
        x = sample.sample(problem, 8192, calc_second_order=False, seed=5)
        theirs = analyze.analyze(problem, ishigami(*x.T), calc_second_order=False, seed=5)
        mine = found_of(wide(ishigami), 3, 8192)
        assert mine.first == pytest.approx(theirs["S1"], abs=0.02)
        assert mine.total == pytest.approx(theirs["ST"], rel=0.02)

    def test_a_step_as_salib_samples_it(self):
        sample = pytest.importorskip("SALib.sample.sobol")
        analyze = pytest.importorskip("SALib.analyze.sobol")
        from steptime.sweeps.sweep import sweep

        ranges = {
            "context": (2000, 8000), "batch": (64, 512), "chip.hbm.bandwidth": (2.5e12, 3.5e12), "rent": (1.3, 2),
            "scale_up.bandwidth": (3e11, 5e11), "chip.peak.bf16": (7e14, 1e15),
        }  # fmt: skip
        held = {"model": "llama-3.3-70b", "system": "hgx-h100", "tp": 8, "engine": "ideal"}
        problem = {"num_vars": len(ranges), "names": list(ranges), "bounds": [list(ends) for ends in ranges.values()]}
        x = sample.sample(problem, 8192, calc_second_order=False, seed=1)
        cost = "usd_per_million_tokens"
        columns = {n: (np.round(c).astype(int) if n in ("context", "batch") else c) for n, c in zip(ranges, x.T, strict=True)}
        answers = sweep("step", columns, answers=[cost], together=True, **held).column(cost).values
        # Shares of the variance are those of the answer's logarithm.
        theirs = analyze.analyze(problem, np.log(answers), calc_second_order=False, seed=1)
        middles = {name: int(sum(ends) / 2) if name in ("context", "batch") else sum(ends) / 2 for name, ends in ranges.items()}
        found = sensitivity("step", vary=ranges, sobol=True, samples=8192, **held, **middles)
        mine = {one.name: one for one in found.swings}
        assert [mine[name].first for name in ranges] == pytest.approx(theirs["S1"], abs=0.02)
        assert [mine[name].total for name in ranges] == pytest.approx(theirs["ST"], abs=0.02)
