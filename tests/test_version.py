"""The version stands in two places, and they agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_newest_section_of_the_changelog_is_of_the_version_in_pyproject() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    sections = re.findall(r"^## (\S+)( \(unreleased\))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert sections[0][0] == version
    assert [section for section in sections[1:] if section[1]] == [], "only the newest section may be unreleased"
