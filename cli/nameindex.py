"""The last part of ``docs/hooks.md``: every name that a plugin may import, with its signature and what it is.

Read from the sources, since the docstring of a constant is in no object.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PUBLIC: Final = ("verniermq.kernel", "verniermq.kernel.requests")
"""The modules whose ``__all__`` plugins may import."""

_ROLE: Final = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
_SENTENCE_END: Final = re.compile(r"(?<=[\w)`\"*'])\.(?=\s|$)")
_LONGEST_VALUE: Final = 60

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign | ast.Module


def name_index() -> str:
    """A table for each public module, in four groups."""
    parts = []
    for module in PUBLIC:
        parts.append(f"### `{module}`")
        groups: dict[str, list[str]] = {"Classes": [], "Errors": [], "Functions": [], "Constants and types": []}
        for name in import_module(module).__all__:
            node, said = _find(module, name)
            groups[_group(module, name, node)].append(f"| `{_shown(name, node)}` | {said} |")
        for title, rows in groups.items():
            if rows:
                parts.append("\n".join([f"| {title} | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _group(module: str, name: str, node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        found = getattr(import_module(module), name)
        return "Errors" if issubclass(found, Exception) else "Classes"
    return "Functions" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else "Constants and types"


def _shown(name: str, node: Definition) -> str:
    """The name as it is used: with its arguments, or with its value if that is short."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        answer = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
        return f"{name}({ast.unparse(node.args)}){answer}".replace("|", "\\|")
    if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
        value = ast.unparse(node.value)
        return f"{name} = {value}" if len(value) < _LONGEST_VALUE else name
    return name


def _find(module: str, name: str) -> tuple[Definition, str]:
    """Where a name is defined, however often it is imported on the way, and the first sentence about it."""
    tree = _parsed(module)
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node, _sentence(name, ast.get_docstring(node))
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == name:
                return node, _sentence(name, next(_texts(tree.body[number + 1 : number + 2]), None))
    for origin, original in _imported(tree, name):
        package = find_spec(origin)
        if package is not None and package.submodule_search_locations is not None:
            submodule = f"{origin}.{original}"
            if find_spec(submodule) is not None:
                return _parsed(submodule), _sentence(name, ast.get_docstring(_parsed(submodule)))
        return _find(origin, original)
    raise LookupError(f"{module} exports {name}, which is defined nowhere")


def _texts(nodes: list[ast.stmt]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _imported(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names if (alias.asname or alias.name) == name)


@cache
def _parsed(module: str) -> ast.Module:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"there is no module {module}")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _sentence(name: str, text: str | None) -> str:
    """
    Raises:
        LookupError: nothing is said.
    """
    if not text:
        raise LookupError(f"{name} is exported and has no docstring; say what it is")
    first = " ".join(_ROLE.sub(r"``\1``", text).partition("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")
    return f"{_SENTENCE_END.split(first)[0].rstrip('.')}."
