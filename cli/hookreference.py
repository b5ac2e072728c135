"""The reference part of ``docs/hooks.md``, made from the specifications: ``python -m verniermq.cli.hookreference``.

Behind the hooks come the names that a plugin may import, see :mod:`verniermq.cli.nameindex`.

What a plugin author reads is what the host checks; a test compares the page with what this makes.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from verniermq.cli.nameindex import name_index
from verniermq.client import hookspecs as client_hooks
from verniermq.kernel import hookspecs
from verniermq.kernel.hookspec import HookKind, kind_of, specifications_in
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.kernel.host.discovery import built_in, load

BEGIN: Final = "<!-- made by python -m verniermq.cli.hookreference -->"
END: Final = "<!-- end of what is made -->"

_HEADING: Final = re.compile(r"# --- (.+?) -{3,}$")
_ROLE: Final = re.compile(r":(?:class|func):`~?(?:[\w.]+\.)?(\w+)`")
_SHAPES: Final = {
    "question": "Question: the first answer counts",
    "announcement": "Announcement: all plugins, in order",
    "change": "Change: all plugins, in order; may refuse",
}


def reference() -> str:
    """Every hook with its signature, what kind it is, and its docstring, in the order of the pages."""
    in_clients = specifications_in(client_hooks)
    in_clients.pop("allocate_queues")  # the kernel's own
    parts = [*_page(hookspecs, specifications_in(hookspecs)), "### In a client", *map(_entry, in_clients.values())]
    parts.append("### Brought by plugins")
    for name in BROKER_PLUGINS.builtin:
        brought = f"Brought by `{name}`: implement it with `@hookimpl(optionalhook=True)`."
        specifications = load(built_in(name, BROKER_PLUGINS)).declaration.hookspecs
        parts.extend(f"{_entry(specification)}\n\n{brought}" for specification in specifications)
    return "\n\n".join(parts) + "\n"


def _page(module: Any, specifications: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """The hooks of a module under its own headings."""
    source = inspect.getsource(module)
    headings = {
        number: match[1] for number, line in enumerate(source.splitlines(), 1) if (match := _HEADING.match(line))
    }
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in specifications:
            for number in [number for number in headings if number < node.lineno]:
                yield f"### {headings.pop(number).capitalize()}"
            yield _entry(specifications[node.name])


def _entry(specification: Callable[..., Any]) -> str:
    node = ast.parse(inspect.getsource(specification)).body[0]
    assert isinstance(node, ast.FunctionDef)
    arguments = ", ".join(
        f"{argument.arg}: {ast.unparse(argument.annotation)}"
        for argument in node.args.args
        if argument.annotation is not None
    )
    answer = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    text = _ROLE.sub(r"``\1``", inspect.cleandoc(ast.get_docstring(node) or "")).replace("``", "`")
    kind = kind_of(specification)
    assert kind is not None
    return f"#### `{node.name}`\n\n```python\ndef {node.name}({arguments}){answer}\n```\n\n*{_said(kind)}*\n\n{text}"


def _said(kind: HookKind) -> str:
    hot = "; on the path of every message" if kind.hot else ""
    return f"{_SHAPES[kind.shape]}; {'def or async def' if kind.may_wait else 'plain def'}{hot}."


def updated(page: str) -> str:
    """The page with its reference part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n## Names to import\n\n{name_index()}\n\n{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/hooks.md")
    file.write_text(updated(file.read_text(encoding="utf-8")), encoding="utf-8")
