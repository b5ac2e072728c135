"""Figures of the tree: the kernel's lines and files, cycles among its packages, hooks and who implements them.

``make figures`` runs it, and ``bench/way.py`` after it, which counts the functions on the way of a send.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from kernel_size import code_lines

ROOT = Path(__file__).parents[1]
ROOMS = ("plugins", "client", "contrib", "testing")
SPECIFICATIONS = ("kernel/hookspecs.py", "client/hookspecs.py")


def trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def package(path: Path) -> str:
    """``store`` of ``kernel/store/store.py``; a file at the root is a package of its own."""
    return path.parts[1].removesuffix(".py")


def package_imports(*, for_types: bool) -> dict[str, set[str]]:
    """Package of the kernel → the others that it imports, with or without what is for type checkers alone."""
    packages = {package(path) for path, _ in trees("kernel")} - {"__init__"}
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees("kernel"):
        if package(path) == "__init__":
            continue
        for name in imported(tree, for_types=for_types):
            others = name.split(".")[2:3] or ["__init__"]
            found[package(path)].update({*others} & packages - {package(path)})
    return found


def imported(tree: ast.Module, *, for_types: bool) -> Iterator[str]:
    only_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (for_types or id(node) not in only_types):
            if node.module == "verniermq.kernel":
                yield from (f"verniermq.kernel.{alias.name}" for alias in node.names)
            elif (node.module or "").startswith("verniermq.kernel."):
                yield str(node.module)


def cycles(*, for_types: bool) -> list[tuple[str, ...]]:
    """Groups of packages that each reach all others of their group."""
    edges = package_imports(for_types=for_types)
    reached = {name: _reached(name, edges) for name in edges}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached.get(other, ())))
        for name in edges
        if name in reached[name]
    }
    return sorted(groups)


def _reached(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = list(edges[start])
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += edges.get(name, ())
    return found


def hooks() -> dict[str, list[str]]:
    """Hook → the plugins and tools that implement it."""
    found: dict[str, list[str]] = {}
    for where in SPECIFICATIONS:
        for node in ast.walk(ast.parse((ROOT / where).read_text())):
            if isinstance(node, ast.FunctionDef) and _is_marked(node, "hookspec"):
                found[node.name] = []
    for _, tree in trees(*ROOMS):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_marked(node, "hookspec"):
                found.setdefault(node.name, [])
    for path, tree in trees(*ROOMS):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_marked(node, "hookimpl"):
                name = path.parts[1] if len(path.parts) > 2 else path.stem
                if node.name in found and name not in found[node.name]:
                    found[node.name].append(name.removesuffix(".py"))
    return found


def _is_marked(node: ast.FunctionDef | ast.AsyncFunctionDef, mark: str) -> bool:
    names = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    return any(isinstance(name, ast.Name) and name.id == mark for name in names)


def main() -> None:
    lines: dict[str, int] = defaultdict(int)
    files: dict[str, int] = defaultdict(int)
    for path, _ in trees("kernel"):
        folder = path.parts[1] if len(path.parts) > 2 else "(root)"
        lines[folder] += code_lines((ROOT / path).read_text())
        files[folder] += 1
    print(f"kernel: {sum(lines.values()):,} code lines in {sum(files.values())} files, {files['(root)']} at its root")
    for name, count in sorted(lines.items(), key=lambda item: -item[1]):
        print(f"  {name:<10} {count:>6,} {files[name]:>3} files")
    for what, for_types in (("at run time", False), ("with what is for type checkers", True)):
        found = "; ".join(" ".join(cycle) for cycle in cycles(for_types=for_types))
        print(f"cycles among the kernel's packages {what}: {found or 'none'}")
    implemented = hooks()
    print(f"hooks: {len(implemented)}, {sum(not users for users in implemented.values())} without an implementer")
    for name, users in implemented.items():
        print(f"  {name:<22} {', '.join(users) or '-'}")


if __name__ == "__main__":
    main()
