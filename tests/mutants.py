"""Changes the code of physics and planning one place at a time, and sees whether a test notices: `make mutants`.

Each mutant is one change at one site of the syntax tree (`changes_at`), compiled in memory and run in a process of its own that
is forked from one which has numpy, hypothesis and pytest loaded: the tests of its own module first, then the others of both
rooms. Nothing is written to the working tree. A test that fails, or a run beyond its limit, kills the mutant.

mutmut and cosmic-ray write mutated files (into a folder beside the sources, or into the sources) and start from nothing for
each; neither spreads a sample evenly over the sites.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "steptime"
ROOMS = ("physics", "planning")
RELOADED = ("steptime.", "tests.")  # what a mutant imports anew, but for the rooms below physics
KEPT = ("models", "hardware", "catalog", "errors", "units", "number_checks", "pareto", "result_base", "data")
OTHERS = (
    "tests/physics", "tests/planning", "tests/validation/test_measured_runs.py", "tests/test_golden.py", "tests/blackboard",
    "tests/test_results.py::test_the_page_of_keys_is_up_to_date",
)  # fmt: skip
SLOW = "not a_fit_says_what_its_runs_hold"  # compiles the simulator, which is in neither room

SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
FLIPS: dict[type, type] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
SHIFTS: dict[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
PAIRS = (
    ("max", "min"), ("maximum", "minimum"), ("ceil", "floor"), ("any", "all"), ("argmax", "argmin"), ("log", "exp"),
)  # fmt: skip
NAMES = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, the code before and after, and its number among all of its file."""

    file: str
    number: int
    line: int
    function: str
    before: str
    after: str

    @property
    def module(self) -> str:
        """Dotted name of the module that it changes."""
        return "steptime." + self.file.removesuffix(".py").replace("/", ".")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: `{self.before}` -> `{self.after}`"


def required_keywords() -> dict[str, set[str]]:
    """Return, for each function and class of the package, the keywords that no call can leave out."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                plain = (node.args.posonlyargs + node.args.args)[: -len(node.args.defaults) or None]
                named = [a for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is None]
                found[node.name] = {argument.arg for argument in plain + named}
            elif isinstance(node, ast.ClassDef):
                fields = [f for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
                found[node.name] = {f.target.id for f in fields if f.value is None and isinstance(f.target, ast.Name)}
    return found


def changes_at(node: ast.AST, required: dict[str, set[str]]) -> Iterator[ast.AST]:
    """Yield what may stand in the place of a node: one change each."""
    one = isinstance(node, ast.BinOp) and getattr(node.right, "value", None) == 1 and isinstance(node.op, ast.Mult | ast.Div)
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS and not one:  # x * 1.0 is x / 1.0
        yield _with(node, op=SWAPS[type(node.op)]())
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.Compare):
        for table in (FLIPS, SHIFTS):
            if type(node.ops[0]) in table:
                yield _with(node, ops=[table[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        new: float = not node.value if isinstance(node.value, bool) else _other(node.value)
        yield ast.Constant(new)
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield ast.Name(NAMES[node.id], ast.Load())
    elif isinstance(node, ast.Attribute) and node.attr in NAMES and isinstance(node.ctx, ast.Load):
        yield _with(node, attr=NAMES[node.attr])
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for keyword in node.keywords:
            if keyword.arg and keyword.arg != "strict" and keyword.arg not in required.get(name, set()):
                yield _with(node, keywords=[k for k in node.keywords if k is not keyword])


def _other(value: float) -> float:
    return 2 * value if abs(value) >= 16 else value + 1


def _with(node: ast.AST, **changes: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def places(node: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str, int | None, str]]:
    """Yield (parent, field, index, function) of all nodes of a tree that may change, in the order of the source.

    Not among them: docstrings, annotations, decorators, `__all__`, errors that are raised, how values are formatted, and the
    `strict` of a `zip`, which only raises where a mistake elsewhere makes lengths unequal.
    """
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = node.name
    skipped = {"annotation", "returns", "decorator_list", "format_spec", "ctx", "op", "ops", "type_params"}
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or field in skipped or isinstance(child, ast.Raise):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in child.targets):
                continue
            yield node, field, index, function
            yield from places(child, function)


def mutants_of(file: str, required: dict[str, set[str]]) -> list[Mutant]:
    """Return all mutants of a file of the package."""
    found = []
    for parent, field, index, function in places(ast.parse((PACKAGE / file).read_text())):
        node = _child(parent, field, index)
        for change in changes_at(node, required):
            before, after = (" ".join(ast.unparse(n).split())[:110] for n in (node, change))
            found.append(Mutant(file, len(found), node.lineno, function, before, after))
    return found


def mutated(mutant: Mutant, required: dict[str, set[str]]) -> ast.Module:
    """Return the syntax tree of a mutant's file with its change."""
    tree = ast.parse((PACKAGE / mutant.file).read_text())
    number = 0
    for parent, field, index, _ in list(places(tree)):
        for change in changes_at(_child(parent, field, index), required):
            if number == mutant.number:
                placed = ast.copy_location(change, _child(parent, field, index))
                if index is None:
                    setattr(parent, field, placed)
                else:
                    getattr(parent, field)[index] = placed
                return ast.fix_missing_locations(tree)
            number += 1
    raise LookupError(mutant)


def _child(parent: ast.AST, field: str, index: int | None) -> ast.AST:
    value = getattr(parent, field)
    return value if index is None else value[index]


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed syntax tree."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: object) -> None:
        exec(compile(self.tree, self.path, "exec"), module.__dict__)


def own_tests(mutant: Mutant) -> list[str]:
    """Return the tests of a mutant's own module: its files, as far as there are any, and its examples."""
    room, name = mutant.file.removesuffix(".py").split("/")
    files = sorted((ROOT / "tests" / room).glob(f"test_{name}*.py"))
    return [str(path.relative_to(ROOT)) for path in files] + [f"tests/test_doctests.py::test_examples[{mutant.module}]"]


def tests_fail(mutant: Mutant | None, required: dict[str, set[str]], verbose: bool) -> bool:
    """Whether a test notices a mutant; None: whether one fails without. For a process of its own."""
    import pytest

    if not verbose:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    for name in list(sys.modules):
        if name == "steptime" or (name.startswith(RELOADED) and name.split(".")[1] not in KEPT):
            del sys.modules[name]
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]
    if mutant is not None:
        sys.meta_path.insert(0, Mutated(mutant.module, PACKAGE / mutant.file, mutated(mutant, required)))
        if pytest.main([*options, *own_tests(mutant)]):
            return True
    return bool(pytest.main([*options, "-k", SLOW, *(path for path in OTHERS if (ROOT / path.partition("::")[0]).exists())]))


def fork(mutant: Mutant | None, required: dict[str, set[str]], limit: int, verbose: bool = False) -> int:
    """Start a process that ends with 1 where a test notices the mutant, else 0, after `limit` seconds of work at the latest."""
    child = os.fork()
    if child:
        return child
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    try:
        noticed = tests_fail(mutant, required, verbose)
    except BaseException:
        noticed = True
    os._exit(int(noticed))


def run(mutants: Sequence[Mutant], required: dict[str, set[str]], workers: int, limit: int) -> dict[Mutant, str]:
    """Return what became of each mutant: "killed", "survived" or "time". A busy machine gets ten times as long."""
    waiting, running, found = list(mutants)[::-1], {}, {}
    while waiting or running:
        while waiting and len(running) < workers:
            mutant = waiting.pop()
            running[fork(mutant, required, limit)] = (mutant, time.monotonic())
        for child, (mutant, started) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if not done and time.monotonic() - started > 10 * limit:
                os.kill(child, signal.SIGKILL)
            elif done:
                found[mutant] = "time" if os.WIFSIGNALED(status) else "killed" if status else "survived"
            else:
                continue
            del running[child]
            print(f"{len(found):4} / {len(mutants)} {found[mutant]:8} {mutant}", flush=True)
        time.sleep(0.02)
    return found


def main() -> int:
    """Run the sample that the options ask for and print the score by module and the survivors."""
    options = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    options.add_argument("--sites", type=int, default=300, help="how many, spread evenly over all; 0 for all")
    options.add_argument("--shift", type=float, default=0.5, help="which ones: 0 to 1, from one site of a sample to the next")
    options.add_argument("--only", default="", help="files whose path contains this, such as physics/memory")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--limit", type=int, default=90, help="least seconds of work after which a mutant counts as killed")
    options.add_argument("--least", type=float, default=0.85, help="share of killed mutants below which the run fails")
    asked = options.parse_args()
    required = required_keywords()
    files = sorted(f"{room}/{path.name}" for room in ROOMS for path in (PACKAGE / room).glob("*.py"))
    every = [mutant for file in files if asked.only in file for mutant in mutants_of(file, required)]
    count = min(asked.sites or len(every), len(every))
    sample = [every[math.floor((i + asked.shift) * len(every) / count)] for i in range(count)]
    _, status, used = os.wait4(fork(None, required, 10 * asked.limit, verbose=True), 0)
    if status:
        print("the tests fail without any change")
        return 1
    # A mutant that makes tests take longer is not killed by that alone.
    limit = max(asked.limit, math.ceil(2 * (used.ru_utime + used.ru_stime)))
    started = time.monotonic()
    found = run(sample, required, asked.workers, limit)
    by = Counter(mutant.file for mutant in found)
    survivors = sorted((m for m, end in found.items() if end == "survived"), key=lambda m: (m.file, m.number))
    lived = Counter(mutant.file for mutant in survivors)
    score = 1 - len(survivors) / len(found)
    print(f"\n{'module':32} mutants  killed")
    for file, n in by.items():
        print(f"{file:32} {n:7}  {1 - lived[file] / n:6.0%}")
    print(f"{'all':32} {len(found):7}  {score:6.1%} of {len(every):,} sites in {time.monotonic() - started:.0f} s\n")
    print("\n".join(f"survived: {mutant}" for mutant in survivors))
    return 0 if score >= asked.least else 1


def prepare() -> None:
    """Load what all mutants share, with compiled files in a folder of their own, and on one thread each."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    sys.pycache_prefix = os.path.join(tempfile.gettempdir(), f"steptime-mutants-{os.getuid()}")
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(sys.pycache_prefix, "hypothesis")
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    os.chdir(ROOT)
    import hypothesis.strategies  # noqa: F401
    import pytest  # noqa: F401

    import steptime as st

    for name in ("deepseek-v3", "llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "gpt-oss-20b", "gemma-3-27b", "gpt2"):
        st.load_model(name)


if __name__ == "__main__":
    prepare()
    sys.exit(main())
