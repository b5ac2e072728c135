"""Every page of an adapter is in the index."""

from __future__ import annotations

from tests.adapters.pages import PAGES


def test_every_page_is_listed_and_has_an_example() -> None:
    index = (PAGES / "README.md").read_text()
    for page in PAGES.glob("*.md"):
        if page.name != "README.md":
            assert f"({page.name})" in index
            assert "```python" in page.read_text()
