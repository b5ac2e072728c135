"""The examples of ``docs/adapters``: programs, each followed by what it prints."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "adapters"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9876"


def examples(page: str, namesrv: str) -> list[tuple[str, str]]:
    """(program, what it prints), with the address of the broker at hand."""
    blocks = BLOCK.findall((PAGES / f"{page}.md").read_text())
    assert [kind for kind, _ in blocks] == ["python", "text"] * (len(blocks) // 2)
    texts = [text.replace(ADDRESS, namesrv) for _, text in blocks]
    return list(zip(texts[::2], texts[1::2], strict=True))
