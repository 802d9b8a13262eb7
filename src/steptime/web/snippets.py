"""Shell and Python snippets that reproduce a board's answer."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from steptime.web.board_inputs import Shared, is_config, is_toml

FORMATS: Final = {"engine": "--engine", "weights": "--weights", "kv": "--kv"}


def subject_names(inputs: Shared) -> tuple[str, str]:
    """Return the model and the system as a command names them.

    For a pasted text it is the name of a file to save it in.

    Args:
        inputs: Inputs of the bar.

    Returns:
        Model and system.
    """
    model = "config.json" if is_config(inputs.model) else inputs.model
    system = "system.toml" if is_toml(inputs.system) else inputs.system
    return model, system


def command(name: str, inputs: Shared, options: Mapping[str, Any], *, pair: bool = True, formats: bool = True) -> str:
    """Return a steptime command; options with empty values are left out.

    Args:
        name: Name of the command.
        inputs: Inputs of the bar.
        options: Values by option.
        pair: Whether the command names model and system.
        formats: Whether the command has --engine, --weights and --kv.

    Returns:
        Shell command.

    >>> command("step", Shared(model="llama-3.1-8b", system="hgx-h100"), {"--batch": 64, "--context": 4096})
    'steptime step llama-3.1-8b hgx-h100 --batch 64 --context 4096'
    """
    words = ["steptime", name, *(subject_names(inputs) if pair else ())]
    format_options = {option: getattr(inputs, field) for field, option in FORMATS.items()} if formats else {}
    for option, value in {**format_options, **options}.items():
        if value is True:
            words.append(option)
        elif value not in ("", None, False):
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def python(call: str) -> str:
    """Return a Python snippet with the import of steptime.

    Args:
        call: Python expression or statements.

    Returns:
        Lines of Python.

    >>> print(python("st.load_model('llama-3.1-8b')"))
    import steptime as st
    <BLANKLINE>
    st.load_model('llama-3.1-8b')
    """
    return f"import steptime as st\n\n{call}"


def loaded(inputs: Shared) -> tuple[str, str]:
    """Return the model and the system as Python expressions.

    Args:
        inputs: Inputs of the bar.

    Returns:
        Names, or a call of `st.load_model` for other number formats.
    """
    model, system = subject_names(inputs)
    formats = [f"{field}={getattr(inputs, field)!r}" for field in ("weights", "kv") if getattr(inputs, field)]
    model_text = repr(model)
    return (f"st.load_model({', '.join([model_text, *formats])})" if formats else model_text), repr(system)
