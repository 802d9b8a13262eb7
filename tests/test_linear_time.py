"""Texts from outside are read in a time that grows with their length: 100,000 characters in less than half a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

import steptime as st
from steptime import units
from steptime.errors import InputError
from tests.conftest import each

MANY = 100_000
LIMIT = 0.5
BLANKS = " " * MANY


def seconds(read: Callable[[], object]) -> float:
    """Return the processor time of a call, which may refuse its input."""
    begin = time.process_time()
    with suppress(InputError):
        read()
    return time.process_time() - begin


@pytest.mark.parametrize(
    "line", [f"[{BLANKS}", f"[{BLANKS}x", f"a{BLANKS}b", f"{BLANKS}=", "[" * MANY, f"[a]{BLANKS}x", "a." * MANY]
)
def test_load_system_with_an_error_and_a_long_line_is_refused_soon(line, tmp_path):
    place = tmp_path / "system.toml"
    place.write_text(f'name = "x"\nnote = """\n{line}\n"""\nbad = 1\n')
    st.load_system("hgx-h100")
    assert seconds(lambda: st.load_system(str(place))) < LIMIT
    with pytest.raises(InputError):
        st.load_system(str(place))


@pytest.mark.parametrize("repeated", ["[[a]]\n", 'name = "x"\n'])
def test_load_system_with_many_lines_is_refused_soon(repeated, tmp_path):
    place = tmp_path / "system.toml"
    place.write_text(f'bad = 1\nnote = """\n[[a]]\n{repeated * (MANY // len(repeated))}"""\n')
    st.load_system("hgx-h100")
    assert seconds(lambda: st.load_system(str(place))) < LIMIT


@each(
    "text",
    [
        f"{BLANKS}1{BLANKS}!",
        f"${BLANKS}1{BLANKS}$",
        f"1{BLANKS}/{BLANKS}h{BLANKS}x",
        "1" * MANY + "!",
        "1_" * MANY + "\nx",
        "1,111" * MANY,
    ],
)
@each("read", ["rent", "electricity", "margin", "quantity", "count"])
def test_quantity_of_many_characters_is_read_soon(read, text):
    from steptime.hardware.energy import read_electricity
    from steptime.hardware.rental_prices import with_rent
    from steptime.pricing.price_estimate import read_margin

    system = st.load_system("hgx-h100")
    readers: dict[str, Callable[[], object]] = {
        "rent": lambda: with_rent(system, text),
        "electricity": lambda: read_electricity(text),
        "margin": lambda: read_margin(text.replace("_", "..")),
        "quantity": lambda: units.parse(text, "B/s"),
        "count": lambda: units.count(text, "tokens"),
    }
    assert seconds(readers[read]) < LIMIT


@pytest.mark.parametrize("key", [" - at `" * (MANY // 7), "`" * MANY])
def test_load_system_with_a_long_unknown_key_is_refused_soon(key, tmp_path):
    place = tmp_path / "system.toml"
    place.write_text(f'name = "x"\n"{key}" = 1\n')
    st.load_system("hgx-h100")
    assert seconds(lambda: st.load_system(str(place))) < LIMIT


@each("name", ["router." * (MANY // 7) + "\n", "norm" * (MANY // 4) + ".", ".ln_" * (MANY // 4) + "!"])
def test_group_of_a_long_module_name_is_found_soon(name):
    from steptime.models.checkpoint import _NUMBER, _groups

    assert seconds(lambda: _groups.__wrapped__(_NUMBER.sub("0", name))) < LIMIT
