"""The examples of docs/testing.md are a test suite of their own; it has to pass in a fresh folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "testing.md"


def test_the_examples_of_the_page_pass_as_somebody_elses_tests(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (test_\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, text in blocks:
        (tmp_path / name).write_text(text)

    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert len(blocks) == 3
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout
