"""The line of a shell, and of Python, that gives what a board shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from steptime.web.board_inputs import Shared, is_config, is_toml

FORMATS: Final = {"engine": "--engine", "weights": "--weights", "kv": "--kv"}


def said(asked: Shared) -> tuple[str, str]:
    """Return the model and the system as a command names them; of a text that was pasted, the file to save it in."""
    model = "config.json" if is_config(asked.model) else asked.model
    system = "system.toml" if is_toml(asked.system) else asked.system
    return model, system


def command(name: str, asked: Shared, options: Mapping[str, Any], *, pair: bool = True, formats: bool = True) -> str:
    """Return a command of steptime with the options that differ from "".

    >>> command("step", Shared(model="llama-3.1-8b", system="hgx-h100"), {"--batch": 64, "--context": 4096})
    'steptime step llama-3.1-8b hgx-h100 --batch 64 --context 4096'
    """
    words = ["steptime", name, *(said(asked) if pair else ())]
    given = {option: getattr(asked, field) for field, option in FORMATS.items()} if formats else {}
    for option, value in {**given, **options}.items():
        if value is True:
            words.append(option)
        elif value not in ("", None, False):
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def python(call: str) -> str:
    """Return a call of steptime as lines of Python.

    >>> print(python("st.load_model('llama-3.1-8b')"))
    import steptime as st
    <BLANKLINE>
    st.load_model('llama-3.1-8b')
    """
    return f"import steptime as st\n\n{call}"


def loaded(asked: Shared) -> tuple[str, str]:
    """Return the expressions of the model and the system in Python: names where nothing else was chosen."""
    model, system = said(asked)
    formats = [f"{field}={getattr(asked, field)!r}" for field in ("weights", "kv") if getattr(asked, field)]
    named = repr(model)
    return (f"st.load_model({', '.join([named, *formats])})" if formats else named), repr(system)
