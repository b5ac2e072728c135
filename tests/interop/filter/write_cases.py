"""Ask Apache's filter about every case and keep the answers for ``make test``, which needs no Java.

Run ``python -m tests.interop.filter.write_cases`` after changing ``cases.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .cases import GROUPS, TAGS
from .generator import random_questions
from .judge import ask_apache

CASES = Path(__file__).parents[2] / "plugins" / "filter" / "sql_cases.json"
TAG_CASES = CASES.with_name("tag_cases.json")
GENERATED = 400
SEED = 5


def table() -> list[dict[str, Any]]:
    """The questions, each with the name of its group."""
    written = [
        {"group": group, "expression": expression, "properties": properties}
        for group, lines in GROUPS.items()
        for expressions, all_properties in lines
        for expression in ([expressions] if isinstance(expressions, str) else expressions)
        for properties in all_properties
    ]
    return written + [{"group": "generated", **question} for question in random_questions(SEED, GENERATED)]


def tag_table() -> list[dict[str, Any]]:
    return [{"tags": expression} for expression in TAGS]


def main() -> None:
    for path, questions in ((CASES, table()), (TAG_CASES, tag_table())):
        answers = ask_apache(questions)
        cases = [{**question, "expected": answer} for question, answer in zip(questions, answers, strict=True)]
        lines = map(json.dumps, cases)
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
        print(f"{len(cases)} cases written to {path.name}")


if __name__ == "__main__":
    main()
