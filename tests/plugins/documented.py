"""Code and settings out of a documentation page, so that tests can run what readers will copy."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[2] / "docs" / "plugins"


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def settings(page: str) -> dict[str, Any]:
    """The table of the plugin from the page's TOML."""
    (block,) = blocks(page, "toml")
    table: dict[str, Any] = tomllib.loads(block)["plugins"][page]
    return table


def example(page: str) -> dict[str, Any]:
    """The names that the last Python block of the page defines; it has fewer than 30 lines of code."""
    code = blocks(page, "python")[-1]
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    names: dict[str, Any] = {"__name__": f"documented_{page}"}
    exec(compile(code, f"{page}.md", "exec"), names)
    return names
