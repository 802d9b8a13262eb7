from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.errors import UnitError
from steptime.units import parse, show
from tests.conftest import each


@each(
    "text, unit, value",
    [
        ("80 GB", "B", 80e9),
        ("80 GiB", "B", 80 * 2**30),
        ("1.8 TB/s", "B/s", 1.8e12),
        ("400 Gb/s", "B/s", 50e9),
        ("400Gbps", "B/s", 50e9),
        ("989.4 TFLOP/s", "FLOP/s", 989.4e12),
        ("989 TFLOPS", "FLOP/s", 989e12),
        ("35 PFLOP/s", "FLOP/s", 35e15),
        ("2 us", "s", 2e-6),
        ("2 µs", "s", 2e-6),
        ("5 min", "s", 300),
        ("3.6 USD/h", "USD/s", 1e-3),
        ("$3.6/h", None, None),
        ("0.1 USD/GB", "USD/B", 1e-10),
        ("1,024", "", 1024),
        ("72", "", 72),
        ("1.2 kW", "W", 1200),
        ("1360 kg", "kg", 1360),
        (12, "", 12),
    ],
)
def test_parse(text, unit, value):
    if unit is None:
        with pytest.raises(UnitError):
            parse(text, "USD/s")
    else:
        assert parse(text, unit) == pytest.approx(value)


@each(
    "text, unit, says",
    [
        ("fast", "B/s", "not a number"),
        ("80", "B", "no unit"),
        (80, "B", "no unit"),
        ("80 GB", "B/s", "quantity in B, but one in B/s"),
        ("80 Gx", "B", "unknown unit"),
        ("10Tb", "B", "did you mean 10TB"),
        ("80 Gibit", "B", "did you mean 80GiB"),
        ("1e999 GB", "B", "finite"),
        ("", "B", "not a number"),
        ("3 GB/s/s", "B/s", "unknown unit"),
        ("1x", "W", "'1x': unknown unit 'x'; write one in W, such as '700 W'"),
        ("2/s", "", "unknown unit '/s'; write a plain number, such as 2$"),
    ],
)
def test_parse_says_what_is_wrong(text, unit, says):
    with pytest.raises(UnitError, match=says):
        parse(text, unit)


@given(some.floats(1e-9, 1e17), some.sampled_from(("B", "B/s", "FLOP/s")))
def test_show_and_parse_agree(value, unit):
    assert parse(show(value, unit, digits=6), unit) == pytest.approx(value, rel=1e-5, abs=1e-3)


# Parts of quantities, and characters that Python takes for digits, blanks or signs. The table of all Unicode takes 3 s to make.
ODD = (*"0123456789eE+-.,_/%*^ \t\n\x00kKMGTPµμ²³½٣１−∞$€BbsXhdé", "GiB", "USD", "tok/s", "FLOP/s", "inf", "nan", "1e999")


@given(some.lists(some.sampled_from(ODD), max_size=30).map("".join), some.sampled_from(("B", "s", "USD/s", "")))
def test_parse_never_raises_anything_else(text, unit):
    with suppress(UnitError):
        assert isinstance(parse(text, unit), float)
