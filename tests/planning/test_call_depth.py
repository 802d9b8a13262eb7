"""How deep the calls of a plan go, and how many functions a step enters: what a reader has to follow."""

from __future__ import annotations

import subprocess
import sys

import pytest

import steptime as st

ENTERED = """
import contextlib, importlib.util, io, sys
package = importlib.util.find_spec("steptime").submodule_search_locations[0] + "/"
entered = set()
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package) and code.co_flags & 1 and "<" not in code.co_name:
        entered.add((code.co_filename, code.co_name, code.co_firstlineno))
sys.argv = ["steptime", "step", "llama-3.1-70b", "hgx-h100", "--batch", "64", "--context", "8192", "--tp", "8"]
sys.setprofile(profile)
from steptime.__main__ import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
sys.setprofile(None)
print(len(entered))
"""


@pytest.mark.slow
def test_plan_calls_at_most_twenty_functions_deep():
    """The plan of the README: the functions below `plan`; comprehensions are parts of theirs, and `==` is no call to read."""
    package = st.__path__[0] + "/"
    stack: list[str] = []
    deepest: list[str] = []

    def profile(frame, event, argument):
        nonlocal deepest
        code = frame.f_code
        if not code.co_filename.startswith(package) or "<" in code.co_name or code.co_name in ("__eq__", "is_same"):
            return
        if event == "call":
            stack.append(code.co_name)
            if len(stack) > len(deepest):
                deepest = list(stack)
        elif event == "return" and stack:
            stack.pop()

    workload, limits = st.Workload(input_tokens=8192, output_tokens=1024), st.Slo(tpot=0.02, ttft=2)
    sys.setprofile(profile)
    try:
        st.plan("deepseek-v3", "gb200-nvl72", workload, limits)
    finally:
        sys.setprofile(None)
    assert len(deepest) <= 20, " -> ".join(deepest)


@pytest.mark.slow
def test_step_command_enters_at_most_350_functions():
    shown = subprocess.run([sys.executable, "-c", ENTERED], capture_output=True, text=True, check=True)
    assert int(shown.stdout) <= 350
