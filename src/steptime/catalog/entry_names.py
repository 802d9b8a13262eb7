"""The one rule for names of models, chips, systems, engines and stacks in files."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

from steptime.errors import DataFileError, short_repr

# Characters.
LONGEST_NAME: Final = 200
# The pattern ends with a lookahead because "$" allows a line end. It has no backslash because msgspec doubles backslashes.
ENTRY_NAME: Final = f"^(?!-)(?!(.*/)?[.][.](/|$))[A-Za-z0-9._/+:@-]{{1,{LONGEST_NAME}}}(?!a|[^a])"
NAME_RULE: Final = f"1 to {LONGEST_NAME} letters, digits and . _ / + : @ -, no - at the start and no part '..'"


def is_entry_name(name: object) -> TypeGuard[str]:
    """Return whether a value from a file is a valid name of an entry.

    Scripts, manifests and tables repeat these names. So a name has no blank, quote, line end or other special character.

    Args:
        name: Value from the file.

    Returns:
        True for a text that follows `NAME_RULE`.

    >>> is_entry_name("deepseek-ai/DeepSeek-V3"), is_entry_name("evil/$(touch x)"), is_entry_name("../x")
    (True, False, False)
    """
    return isinstance(name, str) and re.search(ENTRY_NAME, name) is not None


def check_entry_name(name: object, path: object) -> str:
    """Return the name of an entry if it follows the rule.

    Args:
        name: Value of the key `name`.
        path: The file, for the message.

    Returns:
        The name.

    Raises:
        DataFileError: The value is not a text, or has other characters.
    """
    if not is_entry_name(name):
        raise DataFileError(path, f"name: must be {NAME_RULE}, got {short_repr(name)}")
    return name
