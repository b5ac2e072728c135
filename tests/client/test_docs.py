"""Every example in ``docs/client`` runs, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.client.place import Place

PAGES = Path(__file__).parents[2] / "docs" / "client"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9876"


def examples() -> list[pytest.ParameterSet]:
    """(program, what it prints), in the order of the pages."""
    found = []
    for page in sorted(PAGES.glob("*.md")):
        blocks = BLOCK.findall(page.read_text())
        for number in range(0, len(blocks), 2):
            (kind, program), (other, output) = blocks[number], blocks[number + 1]
            assert (kind, other) == ("python", "text"), page
            found.append(pytest.param(program, output, id=page.stem if number == 0 else f"{page.stem}-{number // 2}"))
    return found


@pytest.mark.parametrize(("program", "output"), examples())
def test_an_example_prints_what_the_page_says(program: str, output: str, place: Place) -> None:
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        exec(compile(program.replace(ADDRESS, place.namesrv), "example", "exec"), {"__name__": "__main__"})

    assert printed.getvalue() == output


def test_every_page_is_listed_and_has_an_example() -> None:
    index = (PAGES / "README.md").read_text()
    for page in PAGES.glob("*.md"):
        if page.name != "README.md":
            assert f"({page.name})" in index
            assert "```python" in page.read_text()
