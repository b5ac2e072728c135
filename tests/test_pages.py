"""The pages for those who work on VernierMQ name files, tests and pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = [
    ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "bench" / "README.md", ROOT / "bench" / "RESULTS.md",
    ROOT / "examples" / "README.md", ROOT / "docs" / "decisions" / "README.md", ARCHITECTURE, *DECISIONS,
]  # fmt: skip
LONGEST_DECISION = 40

FILE = re.compile(r"`((?:kernel|protocol|plugins|client|cli|testing|contrib|tests|bench)/[\w./]+\.py)`")
TEST = re.compile(r"`(test_\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_and_files_of_a_page_exist(page: Path) -> None:
    text = page.read_text()

    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^):]+)\)", text)]
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [file for file in FILE.findall(text) if not (ROOT / file).exists()] == []


def test_the_tests_that_the_architecture_names_exist() -> None:
    there = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (\w+)", file.read_text())
    }

    assert [name for name in TEST.findall(ARCHITECTURE.read_text()) if name not in there] == []


def test_every_decision_is_listed_short_and_in_three_parts() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()

    for number, page in enumerate(DECISIONS, start=1):
        text = page.read_text()
        title = text.splitlines()[0].removeprefix(f"# {number}. ")
        assert f"| {number} | [{title}]({page.name}) |" in index
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
        assert len(text.splitlines()) <= LONGEST_DECISION
