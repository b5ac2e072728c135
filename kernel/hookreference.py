"""The reference part of ``docs/hooks.md``, made from the specifications: ``python -m verniermq.kernel.hookreference``.

What a plugin author reads is what the host checks; a test compares the page with what this makes.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Final

from verniermq.kernel import hookspecs
from verniermq.kernel.host import PLAIN_ONLY, PluginHost

BEGIN: Final = "<!-- made by python -m verniermq.kernel.hookreference -->"
END: Final = "<!-- end of what is made -->"

_HEADING: Final = re.compile(r"# --- (.+?) -{3,}$")
_ROLE: Final = re.compile(r":(?:class|func):`~?(?:[\w.]+\.)?(\w+)`")


def reference() -> str:
    """Every hook with its signature, what kind it is, and its docstring, in the order of ``hookspecs.py``."""
    source = inspect.getsource(hookspecs)
    headings = {
        number: match[1] for number, line in enumerate(source.splitlines(), 1) if (match := _HEADING.match(line))
    }
    known = set(PluginHost.hook_names())
    parts: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in known:
            passed = [number for number in headings if number < node.lineno]
            parts += [f"### {headings.pop(number).capitalize()}" for number in passed]
            parts.append(_entry(node))
    return "\n\n".join(parts) + "\n"


def _entry(node: ast.FunctionDef) -> str:
    arguments = ", ".join(f"{argument.arg}: {ast.unparse(argument.annotation)}" for argument in node.args.args
                          if argument.annotation is not None)  # fmt: skip
    answer = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    text = _ROLE.sub(r"``\1``", inspect.cleandoc(ast.get_docstring(node) or "")).replace("``", "`")
    return f"#### `{node.name}`\n\n```python\ndef {node.name}({arguments}){answer}\n```\n\n*{_kind(node)}*\n\n{text}"


def _kind(node: ast.FunctionDef) -> str:
    asks = any(isinstance(mark, ast.Call) for mark in node.decorator_list)  # @hookspec(firstresult=True)
    plain = node.name in PLAIN_ONLY
    return f"{'The first answer counts' if asks else 'All plugins'}; {'plain def' if plain else 'def or async def'}."


def updated(page: str) -> str:
    """The page with its reference part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/hooks.md")
    file.write_text(updated(file.read_text(encoding="utf-8")), encoding="utf-8")
