"""Count names that say nothing: bare participles, quantifiers and prepositions, and functions named `x_of`.

usage: python tools/check_names.py FOLDER [--limit N] [--list]

Exits with 1 if there are more than the limit (0 by default), so that their number can only fall.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

WORDS = (
    "found told given asked held kept made left said shown wanted known taken drawn one each many most some what of at by on "
    "beside apart alone again chosen seen drafting sought met read brought spent paid named tried worked whole own more other "
    "others less few rest such so there where when whoever anew meanwhile aside worth alike here way ways"
)
VAGUE = frozenset(WORDS.split())


def stored_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every variable, argument, function, class and field that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def is_vague(name: str) -> bool:
    """Return whether a name does not say what it stands for."""
    bare = name.strip("_").lower()
    return bare in VAGUE or (bare.endswith("_of") and bare.count("_") == 1)


def main() -> int:
    """Print the files with most vague names, and compare their number with the limit."""
    words = sys.argv[1:]
    limit = int(words[words.index("--limit") + 1]) if "--limit" in words else 0
    per_file: Counter[str] = Counter()
    for path in sorted(Path(words[0]).rglob("*.py")):
        for line, name in stored_names(ast.parse(path.read_text(encoding="utf-8"))):
            if is_vague(name):
                per_file[str(path)] += 1
                if "--list" in words:
                    print(f"{path}:{line} {name}")
    total = per_file.total()
    print(
        *(f"{number:5} {path}" for path, number in per_file.most_common(8)), f"{total} vague names, at most {limit}", sep="\n"
    )
    return int(total > limit)


if __name__ == "__main__":
    raise SystemExit(main())
