"""The one rule for names of models, chips, systems, engines and stacks that files bring."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

from steptime.errors import DataFileError, short_repr

LONGEST_NAME: Final = 200  # characters
# The end matches no further character, not even the line end that "$" allows. It has no backslash, which msgspec would double.
ENTRY_NAME: Final = f"^(?!-)(?!(.*/)?[.][.](/|$))[A-Za-z0-9._/+:@-]{{1,{LONGEST_NAME}}}(?!a|[^a])"
NAME_RULE: Final = f"1 to {LONGEST_NAME} letters, digits and . _ / + : @ -, without a - in front and without the part '..'"


def is_entry_name(name: object) -> TypeGuard[str]:
    """Whether a value from a file may name an entry.

    Scripts, manifests and tables repeat such names, so a name has no blank, quote, line end or other special character.

    >>> is_entry_name("deepseek-ai/DeepSeek-V3"), is_entry_name("evil/$(touch x)"), is_entry_name("../x")
    (True, False, False)
    """
    return isinstance(name, str) and re.search(ENTRY_NAME, name) is not None


def check_entry_name(name: object, path: object) -> str:
    """Return the name that a file gives its entry, if it follows the rule.

    Args:
        name: value of the key `name`.
        path: the file, for the message.

    Raises:
        DataFileError: the value is no text, or holds other characters.
    """
    if not is_entry_name(name):
        raise DataFileError(path, f"name: must be {NAME_RULE}, not {short_repr(name)}")
    return name
