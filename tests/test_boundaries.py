"""Who may import whom, read from the syntax tree: no import is hidden in a function or behind ``TYPE_CHECKING``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
import pytest

import verniermq.kernel
from verniermq.kernel import requests
from verniermq.kernel.host.builtin import BROKER_PLUGINS

ROOT = Path(__file__).parents[1]
ROOMS = ("kernel", "protocol", "plugins", "client", "cli", "testing", "contrib")
ANYWHERE = (*ROOMS, "tests", "bench")
SEPARATE = ROOT / "contrib" / "example_plugin"
"""A distribution of its own; its tests may use ``verniermq.testing``."""


@attrs.frozen
class Import:
    file: Path
    line: int
    module: str
    name: str | None
    """What is taken out of the module; ``None`` for ``import module``."""

    def __str__(self) -> str:
        what = f"import {self.module}" if self.name is None else f"from {self.module} import {self.name}"
        return f"{self.file.relative_to(ROOT)}:{self.line}: {what}"

    @property
    def target(self) -> str:
        """The module that is meant, for ``from package import module`` too."""
        if self.name is not None and (ROOT / Path(*self.module.split(".")[1:], f"{self.name}.py")).exists():
            return f"{self.module}.{self.name}"
        return self.module


def files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py") if "node_modules" not in path.parts)


@cache
def imports(path: Path) -> tuple[Import, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(path, node.lineno, "." * node.level + (node.module or ""), alias.name)


def of_us(*rooms: str) -> list[Import]:
    return [found for path in files(*rooms) for found in imports(path)]


def plugin_of(path: Path) -> str:
    """The plugin that a file of ``plugins/`` or ``contrib/`` belongs to."""
    return path.relative_to(ROOT).parts[1].removesuffix(".py")


def is_command(path: Path) -> bool:
    """A command of ``verniermq``: it belongs to the command line, which looks it up by name."""
    return path.name == "command.py"


def test_the_kernel_imports_none_of_the_others() -> None:
    others = tuple(f"verniermq.{room}" for room in ROOMS if room != "kernel")
    assert [str(found) for found in of_us("kernel") if found.target.startswith(others)] == []


def test_the_kernel_names_plugins_in_its_list_alone() -> None:
    """What the code says; a docstring may name one as an example."""
    one_of = re.compile(rf"\bplugins\.({'|'.join(BROKER_PLUGINS.builtin)})\b")
    found = []
    for path in files("kernel"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described
            if one_of.search(node.value) and path.name != "builtin.py"
        ]
    assert found == []


def test_plugins_and_contrib_import_only_what_the_kernel_exports() -> None:
    exported = {"verniermq.kernel": verniermq.kernel.__all__, "verniermq.kernel.requests": requests.__all__}
    wrong = [
        str(found)
        for found in of_us("plugins", "contrib")
        if found.module.startswith("verniermq.kernel")
        and found.name not in exported.get(found.module, ())
        and not is_command(found.file)
        and not (found.module == "verniermq.testing" and found.file.is_relative_to(SEPARATE / "tests"))
    ]
    assert wrong == []


BUILT_ON = {("spark", "arrow")}
"""Spark's workers read topics as ``verniermq.contrib.arrow`` does, which also works without Spark."""


@pytest.mark.parametrize("room", ["plugins", "contrib"])
def test_no_plugin_imports_a_sibling(room: str) -> None:
    wrong = []
    for found in of_us(room):
        parts = found.target.split(".")
        if parts[:2] == ["verniermq", room] and len(parts) > 2 and parts[2] != plugin_of(found.file):
            wrong += [str(found)] if (plugin_of(found.file), parts[2]) not in BUILT_ON else []
    assert wrong == []


def test_plugins_import_neither_client_nor_contrib_and_the_client_imports_no_plugin() -> None:
    wrong = [found for found in of_us("plugins") if found.module.startswith(("verniermq.client", "verniermq.contrib"))]
    wrong += [found for found in of_us("client") if found.module.startswith(("verniermq.plugins", "verniermq.contrib"))]
    assert [str(found) for found in wrong] == []


def test_nobody_imports_a_room_without_its_first_name() -> None:
    bare = [found for found in of_us(*ANYWHERE) if found.module.split(".")[0] in ROOMS]
    assert [str(found) for found in bare] == [], "a bare import makes a second copy of every class"


def test_imports_are_absolute() -> None:
    assert [str(found) for found in of_us(*ROOMS) if found.module.startswith(".")] == []


def test_what_the_kernel_exports_is_there_and_in_order() -> None:
    names = verniermq.kernel.__all__
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(verniermq.kernel, name)] == []


def test_no_object_writes_the_private_attributes_of_another() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in files(*ROOMS)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and node.attr.startswith("_")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    assert found == [], "say it by a method or an argument of the other object"


def test_no_request_is_made_of_a_code_and_fields_by_name() -> None:
    """A class says which fields a request has; whoever passes a request on takes the fields that came."""
    found = []
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    pairs = zip(node.args, node.args[1:], strict=False)
                    found += [
                        f"{file.relative_to(ROOT)}:{node.lineno}"
                        for code, fields in pairs
                        if "RequestCode." in ast.unparse(code) and isinstance(fields, ast.Dict) and fields.keys
                    ]

    assert found == []
