"""Make text from outside safe to show: control characters for terminals, formulas for spreadsheets."""

from __future__ import annotations

import re
from typing import Any, Final

# C0 and C1 controls but tab and line feed, and marks that reorder the text on a screen
CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# the first characters by which spreadsheets take a cell for a formula
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def replace_controls(text: str) -> str:
    """Return text with each control character as a replacement character; tabs and line feeds stay.

    >>> replace_controls("evil\\x1b[2J"), replace_controls("a\\tb\\n")
    ('evil�[2J', 'a\\tb\\n')
    """
    return CONTROL.sub("\ufffd", text)


def escape_controls(json_text: str) -> str:
    """Return JSON text with the control characters that JSON allows in strings as \\u escapes.

    >>> escape_controls('["\\x9b2J"]')
    '["\\\\u009b2J"]'
    """
    return CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", json_text)


def safe_cell(value: Any) -> Any:
    """Return a cell of a CSV file that no spreadsheet takes for a formula; numbers, also those in text, stay.

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
