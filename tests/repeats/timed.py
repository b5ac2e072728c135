"""Which tests can depend on how threads, processes and clocks fall together; read from the syntax tree.

A test counts if it mentions something of :data:`SIGNS`, or a fixture or function of its own module or of a
``conftest.py`` above it that does so. Functions of other modules are known by their names alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"

MODULES: Final = frozenset({"threading", "subprocess", "multiprocessing", "concurrent", "time", "signal", "socket"})
"""Whatever is used of these."""
SIGNS: Final = frozenset(
    {
        "sleep", "to_thread", "fork", "Popen", "Thread", "BrokerProcess", "verniermq_broker", "fail_after", "timeout",
        "move_on_after", "wait_for", "until", "eventually",
    }
)  # fmt: skip
LEFT_OUT: Final = ("interop", "spark", "campaign", "repeats")
"""They need other programs or minutes; ``make interop`` and ``make campaign`` have rounds of their own."""


def timed_tests(root: Path = TESTS) -> dict[Path, list[str]]:
    """File → the names of its tests that count."""
    found = {}
    for path in sorted(root.rglob("test_*.py")):
        if path.relative_to(root).parts[0] not in LEFT_OUT and (names := timed_in(path)):
            found[path] = names
    return found


def timed_in(path: Path) -> list[str]:
    functions = dict(_functions(path))
    for folder in path.relative_to(ROOT).parents:
        conftest = ROOT / folder / "conftest.py"
        if conftest.is_file():
            functions = {**_functions(conftest), **functions}
    timed = {name for name, used in functions.items() if used & SIGNS}
    while more := {name for name, used in functions.items() if used & timed} - timed:
        timed |= more
    return [name for name in _functions(path) if name.rpartition(".")[2].startswith("test_") and name in timed]


@cache
def _functions(path: Path) -> dict[str, frozenset[str]]:
    """Function → the names that it mentions; what comes from one of the modules counts as a sign."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES
        for alias in node.names
    }
    return {name: frozenset(_mentioned(node, imported)) for name, node in _definitions(tree.body)}


def _definitions(body: Iterable[ast.stmt], prefix: str = "") -> Iterable[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield node.name, node
            yield from _definitions(node.body, f"{node.name}.")


def _mentioned(node: ast.AST, imported: set[str]) -> Iterable[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield "sleep" if part.id in imported or part.id in MODULES else part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.arg):
            yield part.arg  # a fixture
