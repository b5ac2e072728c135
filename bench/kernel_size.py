"""Counts the code lines of the kernel: without blank lines, comments and docstrings (``make kernel-size``).

A line counts if a token of code touches it. A string that stands alone, under a ``def`` or under an attribute, is
documentation. ``--check`` compares the totals with the limits given and ends with exit code 1 if one is crossed::

    python bench/kernel_size.py --check --max-lines 6500 --max-root-files 15
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
NO_CODE: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip


def code_lines(source: str) -> int:
    """How many lines of a module are code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count(folder: Path, without: list[str]) -> dict[Path, int]:
    """The code lines of each file, by its path below the folder."""
    found = sorted(path.relative_to(folder) for path in folder.rglob("*.py"))
    return {path: code_lines((folder / path).read_text("utf-8")) for path in found if path.parts[0] not in without}


def report(sizes: dict[Path, int], folder: str) -> str:
    """Each file, each folder, and the total; at most 80 columns."""
    parts: dict[str, list[Path]] = {}
    for path in sizes:
        parts.setdefault(path.parts[0] if len(path.parts) > 1 else ".", []).append(path)
    lines: list[str] = []
    for part, paths in sorted(parts.items()):
        name = folder if part == "." else f"{folder}/{part}"
        lines.append(f"{name + '/':<58}{sum(sizes[path] for path in paths):>10,}{len(paths):>5} files")
        lines += [f"  {path.as_posix():<56}{sizes[path]:>10,}" for path in paths]
    lines.append(f"{'total':<58}{sum(sizes.values()):>10,}{len(sizes):>5} files")
    lines.append(f"{'files at the root':<58}{len(parts.get('.', [])):>10,}")
    return "\n".join(lines)


def crossed(sizes: dict[Path, int], max_lines: int | None, max_root_files: int | None) -> list[str]:
    """What is larger than it may be, a sentence each."""
    total, at_root = sum(sizes.values()), sum(len(path.parts) == 1 for path in sizes)
    wrong = []
    if max_lines is not None and total > max_lines:
        wrong.append(f"{total:,} code lines exceed the limit of {max_lines:,}")
    if max_root_files is not None and at_root > max_root_files:
        wrong.append(f"{at_root} files at the root exceed the limit of {max_root_files}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the code lines of the kernel.")
    parser.add_argument("--folder", type=Path, default=ROOT / "kernel", help="what is counted (kernel)")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave out a folder in it")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a limit is crossed")
    parser.add_argument("--max-lines", type=int, metavar="N", help="the most code lines in total")
    parser.add_argument("--max-root-files", type=int, metavar="N", help="the most files at the folder's root")
    options = parser.parse_args()
    if options.check and options.max_lines is None and options.max_root_files is None:
        parser.error("--check needs --max-lines or --max-root-files")
    sizes = count(options.folder, options.without)
    print(report(sizes, options.folder.name))
    wrong = crossed(sizes, options.max_lines, options.max_root_files) if options.check else []
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
