"""Safe text: no control characters for terminals, no formulas for spreadsheets."""

from __future__ import annotations

import re
from typing import Any, Final

# C0 and C1 controls except tab and line feed, and marks that reorder text on a screen.
CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Spreadsheets evaluate a cell with one of these first characters as a formula.
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def replace_controls(text: str) -> str:
    """Replace each control character of a text; tabs and line feeds stay.

    Args:
        text: Text from outside.

    Returns:
        Text with replacement characters.

    >>> replace_controls("evil\\x1b[2J"), replace_controls("a\\tb\\n")
    ('evil�[2J', 'a\\tb\\n')
    """
    return CONTROL.sub("\ufffd", text)


def escape_controls(json_text: str) -> str:
    """Return JSON text with the control characters that JSON allows as \\u escapes.

    Args:
        json_text: JSON text.

    Returns:
        JSON text with the same meaning.

    >>> escape_controls('["\\x9b2J"]')
    '["\\\\u009b2J"]'
    """
    return CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", json_text)


def safe_cell(value: Any) -> Any:
    """Return a cell of a CSV file that no spreadsheet evaluates as a formula.

    Args:
        value: A number or a text. Numbers in text stay unchanged.

    Returns:
        The value, with an apostrophe before a formula.

    >>> safe_cell("=1+1"), safe_cell("-3.5"), safe_cell(-3.5), safe_cell("gpt-2")
    ("'=1+1", '-3.5', -3.5, 'gpt-2')
    """
    if not isinstance(value, str):
        return value
    text = f"'{value}" if value.startswith(FORMULA_STARTS) and not _is_number(value) else value
    return replace_controls(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
