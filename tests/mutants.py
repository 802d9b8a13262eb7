"""Changes the code of physics and planning one place at a time, and sees whether a test notices: `make mutants`.

Each mutant is one change at one site of the syntax tree (`changes_at`), compiled in memory and run in a process of its own: a
copy of one that has collected the tests and has seen which functions each test calls. A change inside a function becomes the
code of that function; after any other change all modules are imported anew. The tests that call the function run, those of its
own module first. Nothing is written to the working tree. A test that fails, or a run beyond its limit, kills the mutant.

mutmut and cosmic-ray write mutated files (into a folder beside the sources, or into the sources) and start from nothing for
each; neither spreads a sample evenly over the sites.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import gc
import importlib.abc
import importlib.util
import math
import os
import pickle
import resource
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from zlib import crc32

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "steptime"
ROOMS = ("physics", "planning")
RELOADED = ("steptime.", "tests.")  # what a mutant imports anew, but for the rooms below physics
KEPT = ("models", "hardware", "catalog", "errors", "units", "number_checks", "pareto", "result_base", "data")
TESTS = (
    "tests/physics", "tests/planning", "tests/validation/test_measured_runs.py", "tests/test_golden.py", "tests/blackboard",
    "tests/test_results.py::test_the_page_of_keys_is_up_to_date",
    "tests/test_results.py::test_fields_of_results_have_a_meaning_and_one_key_each", "tests/test_doctests.py",
)  # fmt: skip
# Tests that read classes of both rooms without a call: what a class declares is outside of functions.
READERS = "tests/test_results.py"
OPTIONS = (
    "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:hypothesispytest",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
MOST_BYTES = 16 * 2**30  # of address space

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
    """One change: where it is, the code before and after, its number among all of its file, and the line where the outermost
    function around it starts (0: it is in none)."""

    file: str
    number: int
    line: int
    function: str
    before: str
    after: str
    first: int

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


def places(node: ast.AST, function: str = "", first: int = 0) -> Iterator[tuple[ast.AST, str, int | None, str, int]]:
    """Yield (parent, field, index, function, its first line) of all nodes that may change, in the order of the source.

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
            line = first
            if isinstance(node, ast.FunctionDef) and field == "body":
                line = first or min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node, field, index, function, line
            yield from places(child, function, line)


def mutants_of(file: str, required: dict[str, set[str]]) -> list[Mutant]:
    """Return all mutants of a file of the package."""
    found = []
    for parent, field, index, function, first in places(ast.parse((PACKAGE / file).read_text())):
        node = _child(parent, field, index)
        for change in changes_at(node, required):
            before, after = (" ".join(ast.unparse(n).split())[:110] for n in (node, change))
            found.append(Mutant(file, len(found), node.lineno, function, before, after, first))
    return found


def mutated(mutant: Mutant, required: dict[str, set[str]]) -> ast.Module:
    """Return the syntax tree of a mutant's file with its change."""
    tree = ast.parse((PACKAGE / mutant.file).read_text())
    number = 0
    for parent, field, index, _, _ in list(places(tree)):
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


def tests_fail(mutant: Mutant, required: dict[str, set[str]], tests: Sequence[str]) -> bool:
    """Whether one of these tests notices a mutant, with all modules of both rooms imported anew. For a process of its own."""
    nothing_is_printed()
    for name in list(sys.modules):
        if name == "steptime" or (name.startswith(RELOADED) and name.split(".")[1] not in KEPT):
            del sys.modules[name]
    sys.meta_path.insert(0, Mutated(mutant.module, PACKAGE / mutant.file, mutated(mutant, required)))
    return bool(pytest.main(["-x", *OPTIONS, *tests]))


def nothing_is_printed() -> None:
    """Send what this process prints from here on nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


@dataclass(frozen=True)
class Reach:
    """What a test takes, and which functions of both rooms it calls: file and first line of each."""

    seconds: float
    called: frozenset[tuple[str, int]]
    passed: bool


class Recorder:
    """Records which functions of both rooms are called: file and first line of each.

    A test also depends on a function that ran before it, in a fixture for several tests or behind a cache. Therefore the calls
    of each such part are kept by its key, for all who use its result.
    """

    def __init__(self) -> None:
        paths = (path for room in ROOMS for path in (PACKAGE / room).glob("*.py"))
        self.files = {str(path): str(path.relative_to(PACKAGE)) for path in paths}
        self.parts: dict[Hashable, set[tuple[str, int]]] = defaultdict(set)
        self.is_on = False
        self.open = threading.local()
        self.outermost: set[tuple[str, int]] = set()

    @property
    def called(self) -> set[tuple[str, int]]:
        """Calls of the innermost part of this thread; other threads than the first add to the outermost one."""
        return self.open.parts[-1] if getattr(self.open, "parts", None) else self.outermost

    @contextmanager
    def recording(self) -> Iterator[set[tuple[str, int]]]:
        """Record the calls of this block in the set that it gets."""
        self.outermost, self.is_on = set(), True
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            yield self.outermost
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.is_on = False

    @contextmanager
    def part(self, key: Hashable) -> Iterator[None]:
        """Record the calls of this block with those of earlier blocks with the same key, for all that is around it."""
        outer, inside = self.called, getattr(self.open, "parts", [])
        called = self.parts[key]
        self.open.parts = [*inside, called]
        try:
            yield
        finally:
            self.open.parts = inside
            outer |= called

    def trace(self, frame: Any, event: str, argument: object) -> None:
        """Note a call, as `sys.settrace` asks."""
        if file := self.files.get(frame.f_code.co_filename):
            self.called.add((file, frame.f_code.co_firstlineno))


RECORDER = Recorder()


class Cached:
    """A function with `functools.lru_cache` whose calls count for all who use a kept result."""

    def __init__(self, function: Callable[..., Any], cached: Any) -> None:
        functools.update_wrapper(self, function)
        self.cached, self.cache_clear, self.cache_info = cached, cached.cache_clear, cached.cache_info

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if not RECORDER.is_on:
            return self.cached(*args, **keywords)
        with RECORDER.part((self, functools._make_key(args, keywords, typed=False))):
            return self.cached(*args, **keywords)

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def __reduce__(self) -> str:
        return self.__qualname__


def count_cached_calls() -> None:
    """Let every cache that is declared from here on count its calls for all who use what it kept."""
    cache = functools.lru_cache

    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
        if callable(maxsize):
            return Cached(maxsize, cache(maxsize))
        return lambda function: Cached(function, cache(maxsize, typed)(function))

    functools.lru_cache = lru_cache  # type: ignore[assignment]
    functools.cache = lru_cache(maxsize=None)  # type: ignore[assignment]


class Mutants:
    """In place of the tests, a run of pytest runs mutants, each in a copy of the process that has collected the tests."""

    def __init__(self, sample: Sequence[Mutant], required: dict[str, set[str]], asked: argparse.Namespace) -> None:
        self.sample, self.required, self.asked = sample, required, asked
        self.reach: dict[str, Reach] = {}
        self.found: dict[Mutant, str] = {}
        self.collected: set[tuple[str, int]] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Count the calls of a fixture for all tests that use it, not only for the first."""
        if not RECORDER.is_on:
            return (yield)
        with RECORDER.part(fixturedef):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Record what the modules of tests call before any test runs."""
        with RECORDER.recording() as self.collected:
            return (yield)

    def pytest_runtestloop(self, session: Any) -> bool:
        gc.unfreeze()
        functions = defaultdict(list)
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                functions[one.__code__.co_filename, one.__code__.co_firstlineno].append(one)
        gc.freeze()
        self.session, self.functions = session, functions
        self.items = {item.nodeid: item for item in session.items}
        kept = Path(self.asked.reach) if self.asked.reach else None
        if kept and kept.exists():
            self.reach = pickle.loads(kept.read_bytes())
        else:
            self.record()
        if kept:
            kept.write_bytes(pickle.dumps(self.reach))
        if not all(reach.passed for reach in self.reach.values()):
            raise AssertionError([name for name, reach in self.reach.items() if not reach.passed])
        inside = [m for m in self.sample if m.first and functions[str(PACKAGE / m.file), m.first]]
        works = {}
        for mutant in inside:
            batches = self.batches(mutant)
            works[mutant] = (partial(self.with_new_code, mutant, batches), self.limit(batches))
        self.found = run(works, self.asked.workers)
        Path(self.asked.results).write_bytes(pickle.dumps((self.reach, self.found, self.collected)))
        return True

    def record(self) -> None:
        """Run all tests without a change, to see what they call."""
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for worker in range(self.asked.workers):
                children.append(os.fork())
                if not children[-1]:
                    part = [i for i in self.items.values() if crc32(str(i.path).encode()) % self.asked.workers == worker]
                    nothing_is_printed()
                    Path(folder, str(worker)).write_bytes(pickle.dumps(self.recorded(part)))
                    os._exit(0)
            for worker, child in enumerate(children):
                os.waitpid(child, 0)
                self.reach |= pickle.loads(Path(folder, str(worker)).read_bytes())

    def recorded(self, items: Sequence[Any]) -> dict[str, Reach]:
        reach = {}
        for item, following in pairwise([*items, None]):
            failed, started = self.session.testsfailed, time.process_time()
            with RECORDER.recording() as called:
                self.session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            used = time.process_time() - started
            fixtures = (one for name in item.fixturenames for one in item._fixtureinfo.name2fixturedefs.get(name, ()))
            called.update(*(RECORDER.parts.get(fixture, ()) for fixture in fixtures))
            reach[item.nodeid] = Reach(used, frozenset(called), self.session.testsfailed == failed)
        return reach

    def batches(self, mutant: Mutant) -> list[list[str]]:
        """Return the tests that call what a mutant changes: its own first, then the quick ones, each batch file by file.

        A mutant outside of functions has those that call any function of its file, all of its own module, and those that read
        classes, because constants and fields are read without a call. All together take `--seconds` at most.
        """
        name = Path(mutant.file).stem

        def is_near(test: str) -> bool:
            return f"/test_{name}" in test or (not mutant.first and test.startswith(READERS))

        touched = [
            test for test, reach in self.reach.items()
            if (not mutant.first and is_near(test))
            or any(file == mutant.file and mutant.first in (0, line) for file, line in reach.called)
        ]  # fmt: skip
        touched.sort(key=lambda test: (not is_near(test), self.reach[test].seconds))
        batches, used, order = [list[str]() for _ in range(3)], 0.0, {test: n for n, test in enumerate(self.reach)}
        for test in touched:
            if used + self.reach[test].seconds > self.asked.seconds:
                continue  # a long test of its own module leaves time to the quick ones of others
            used += self.reach[test].seconds
            batches[(used > 1) + (used > 5)].append(test)
        return [sorted(batch, key=order.__getitem__) for batch in batches if batch]

    def with_new_code(self, mutant: Mutant, batches: Sequence[Sequence[str]]) -> bool:
        """Whether a test notices when the function of a mutant has its code. For a process of its own."""
        nothing_is_printed()
        path = str(PACKAGE / mutant.file)
        for code in codes(compile(mutated(mutant, self.required), path, "exec")):
            if code.co_firstlineno == mutant.first:
                for function in self.functions[path, mutant.first]:
                    if code.co_name in (function.__name__, function.__code__.co_name):
                        function.__code__ = code
        for batch in batches:
            for item, following in pairwise([*(self.items[test] for test in batch), None]):
                self.session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.session.testsfailed:
                    return True
        return False

    def limit(self, batches: Sequence[Sequence[str]]) -> int:
        """Return the seconds of work after which a mutant counts as killed."""
        return math.ceil(10 + 3 * sum(self.reach[test].seconds for batch in batches for test in batch))


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield all pieces of compiled code inside one, the outermost of each line first."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from codes(inner)


def fork(work: Callable[[], bool], limit: int) -> int:
    """Start a process that ends with 1 where a test notices the mutant, else 0, after `limit` seconds of work at the latest."""
    child = os.fork()
    if child:
        return child
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        noticed = work()
    except BaseException:
        noticed = True
    os._exit(int(noticed))


def run(works: dict[Mutant, tuple[Callable[[], bool], int]], workers: int) -> dict[Mutant, str]:
    """Return what became of each mutant: "killed", "survived" or "time"."""
    waiting, running, found = list(works)[::-1], {}, {}
    while waiting or running:
        while waiting and len(running) < workers:
            mutant = waiting.pop()
            running[fork(*works[mutant])] = mutant
        for child, mutant in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                found[mutant] = "time" if os.WIFSIGNALED(status) else "killed" if status else "survived"
                del running[child]
                print(f"{len(found):4} / {len(works)} {found[mutant]:8} {mutant}", flush=True)
        time.sleep(0.02)
    return found


def main() -> int:
    """Run the sample that the options ask for and print the score by module and the survivors."""
    options = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    options.add_argument("--sites", type=int, default=300, help="how many, spread evenly over all; 0 for all")
    options.add_argument("--shift", type=float, default=0.5, help="which ones: 0 to 1, from one site of a sample to the next")
    options.add_argument("--slice", default="1/1", help="which part of the sample, such as 2/3")
    options.add_argument("--only", default="", help="files whose path contains this, such as physics/memory; or FILE:LINE")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--seconds", type=float, default=60, help="of tests that a mutant has to survive")
    options.add_argument("--reach", default="", help="a file that keeps what each test calls, for the next part of a sample")
    options.add_argument("--least", type=float, default=0.85, help="share of killed mutants below which the run fails")
    asked = options.parse_args()
    required = required_keywords()
    files = sorted(f"{room}/{path.name}" for room in ROOMS for path in (PACKAGE / room).glob("*.py"))
    every = [m for file in files for m in mutants_of(file, required) if asked.only in f"{m.file}:{m.line}"]
    count = min(asked.sites or len(every), len(every))
    part, parts = map(int, asked.slice.split("/"))
    sample = [every[math.floor((i + asked.shift) * len(every) / count)] for i in range(count)][part - 1 :: parts]
    sample.sort(key=lambda mutant: crc32(str(mutant).encode()))  # what a run has done when it is stopped is a sample too
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        asked.results = Path(folder, "results")
        child = os.fork()
        if not child:  # this process stays without the modules of the tests
            tests = [path for path in TESTS if (ROOT / path.partition("::")[0]).exists()]
            status = pytest.main([*OPTIONS, "-s", *tests], [Mutants(sample, required, asked)])
            os._exit(int(status != 0))
        if os.waitpid(child, 0)[1]:
            print("the tests fail without any change")
            return 1
        reach, found, collected = pickle.loads(asked.results.read_bytes())
    mutants = Mutants(sample, required, asked)
    mutants.reach = reach
    works = {}
    for mutant in sample:
        # A survivor that ran before any test, where modules of tests are imported, has another chance with all imported anew.
        again = found.get(mutant) == "survived" and (mutant.file, mutant.first) in collected
        if mutant not in found or again:
            batches = mutants.batches(replace(mutant, first=0) if again else mutant)
            tests = [test for batch in batches for test in batch]
            works[mutant] = (partial(tests_fail, mutant, required, tests), 20 + mutants.limit(batches))
    found |= run(works, asked.workers)
    by = Counter(mutant.file for mutant in found)
    survivors = sorted((m for m, end in found.items() if end == "survived"), key=lambda m: (m.file, m.number))
    lived = Counter(mutant.file for mutant in survivors)
    score = 1 - len(survivors) / len(found)
    print(f"\n{'module':32} mutants  killed")
    for file in sorted(by):
        print(f"{file:32} {by[file]:7}  {1 - lived[file] / by[file]:6.0%}")
    print(f"{'all':32} {len(found):7}  {score:6.1%} of {len(every):,} sites in {time.monotonic() - started:.0f} s\n")
    print("\n".join(f"survived: {mutant}" for mutant in survivors))
    return 0 if score >= asked.least else 1


def prepare() -> None:
    """Load what all mutants share, with compiled files in a folder of their own, and on one thread each."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    sys.pycache_prefix = os.path.join(tempfile.gettempdir(), f"steptime-mutants-{os.getuid()}")
    os.environ.setdefault("EXAMPLES", "20")
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(sys.pycache_prefix, "hypothesis")
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    os.chdir(ROOT)
    import hypothesis.strategies  # noqa: F401

    count_cached_calls()
    import steptime as st

    for name in ("deepseek-v3", "llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "gpt-oss-20b", "gemma-3-27b", "gpt2"):
        st.load_model(name)


if __name__ == "__main__":
    prepare()
    sys.exit(main())
