"""Which tests can depend on how threads, processes and clocks fall together; read from the syntax tree.

A test counts if it uses something of :data:`MODULES` or :data:`SIGNS`, or a fixture or function that does so: of its
own module, of a ``conftest.py`` above it, or of a module of the tests that it imports. A sleep of zero lets others have
a turn and asks no clock; the sleep of a broker's own clock ends when a test moves it; ``fail_after`` is the limit
of a test that hangs.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from attrs import field, frozen

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"

MODULES: Final = frozenset({"threading", "subprocess", "multiprocessing", "concurrent", "time", "signal", "socket"})
"""Whatever is used of these."""
SIGNS: Final = frozenset(
    {
        "sleep", "to_thread", "fork", "Popen", "Thread", "BrokerProcess", "broker_process", "verniermq_broker",
        "move_on_after", "wait_for",
    }
)  # fmt: skip
LEFT_OUT: Final = ("interop", "spark", "campaign", "repeats")
"""They need other programs or minutes; ``make interop`` and ``make campaign`` have rounds of their own."""


@frozen
class Function:
    text: str
    """Its source, without what a change of formatting changes."""
    mentioned: frozenset[str]
    is_timed: bool


@frozen
class Module:
    path: Path
    functions: dict[str, Function] = field(hash=False, eq=False)
    classes: dict[str, list[str]] = field(hash=False, eq=False)
    """Class → its methods, which are functions by the name ``Class.method``."""
    imports: dict[str, tuple[Path, str]] = field(hash=False, eq=False)
    """Name → the module of the tests that it is from, and its name there."""

    def find(self, name: str) -> Iterator[tuple[Module, str]]:
        """Where a name that a function of this module mentions is defined, among the tests."""
        if name in self.functions:
            yield self, name
        elif name in self.imports:
            path, original = self.imports[name]
            yield from read(path).find(original)
        else:
            for folder in self.path.relative_to(ROOT).parents:
                conftest = ROOT / folder / "conftest.py"
                if conftest.is_file() and name in read(conftest).functions:
                    yield read(conftest), name
                    return


def timed_tests(root: Path = TESTS) -> dict[Path, dict[str, str]]:
    """File → its tests that count → a digest of each one's source and of what it uses."""
    found = {}
    for path in sorted(root.rglob("test_*.py")):
        if path.relative_to(root).parts[0] not in LEFT_OUT and (tests := timed_in(path)):
            found[path] = tests
    return found


def timed_in(path: Path) -> dict[str, str]:
    module, found = read(path), {}
    for name in module.functions:
        if name.rpartition(".")[2].startswith("test_"):
            used = _used(module, name)
            if any(function.is_timed for function in used):
                found[name] = hashlib.sha256("".join(sorted(one.text for one in used)).encode()).hexdigest()[:12]
    return found


def _used(module: Module, name: str) -> list[Function]:
    """A function and all those of the tests that it leads to; of a class, the methods that one of them names."""
    seen: dict[tuple[Module, str], Function] = {}
    left = {(module, name)}
    while left:
        seen |= {(where, one): where.functions[one] for where, one in left}
        named = frozenset().union(*(function.mentioned for function in seen.values()))
        left = {found for where, one in left for name in where.functions[one].mentioned for found in where.find(name)}
        left |= {
            (where, f"{one}.{method}")
            for where, one in seen
            for method in where.classes.get(one, ())
            if method in named or method.startswith("__")
        }
        left -= seen.keys()
    return list(seen.values())


@cache
def read(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    signs, imports = set(), {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        source = ROOT / (node.module or "").replace(".", "/")
        for alias in node.names:
            if (node.module or "").partition(".")[0] in MODULES:
                signs.add(alias.asname or alias.name)
            elif source.with_suffix(".py").is_file():
                imports[alias.asname or alias.name] = source.with_suffix(".py"), alias.name
    functions = {
        name: Function(ast.unparse(node), frozenset(_mentioned(node)), _is_timed(node, signs))
        for name, node in _definitions(tree.body)
    }
    classes = {
        node.name: [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return Module(path, functions, classes, imports)


def _definitions(body: Iterable[ast.stmt], prefix: str = "") -> Iterable[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield node.name, ast.Module([one for one in node.body if not hasattr(one, "body")], [])
            yield from _definitions(node.body, f"{node.name}.")


def _mentioned(node: ast.AST) -> Iterable[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.arg):
            yield part.arg  # a fixture


def _is_timed(node: ast.AST, signs: set[str]) -> bool:
    idle = {id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call) and _is_idle(part)}
    for part in ast.walk(node):
        if id(part) in idle:
            continue
        if isinstance(part, ast.Name) and part.id in signs | SIGNS | MODULES:
            return True
        if isinstance(part, ast.Attribute) and part.attr in SIGNS:
            return True
    return False


def _is_idle(call: ast.Call) -> bool:
    """Whether it is a sleep that no clock ends."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "sleep"):
        return False
    owner = call.func.value
    of_clock = (isinstance(owner, ast.Name) and owner.id.endswith("clock")) or (
        isinstance(owner, ast.Attribute) and owner.attr.endswith("clock")
    )
    return of_clock or (bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)
