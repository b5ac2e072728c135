"""The tables of cases that Apache's own filter answered (written by ``tests/interop/filter/write_cases.py``)."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.filter.answers import our_answer
from verniermq.kernel import SubscriptionParseFailed
from verniermq.plugins.filter.sql import compile_sql

HERE = Path(__file__).parent
Case = dict[str, Any]


def sql_cases() -> dict[str, list[Case]]:
    groups = defaultdict(list)
    for case in json.loads((HERE / "sql_cases.json").read_text()):
        groups[case["group"]].append(case)
    return groups


SQL_CASES = sql_cases()
TAG_CASES: list[Case] = json.loads((HERE / "tag_cases.json").read_text())


def test_the_table_is_as_large_as_promised_and_has_every_sort_of_answer() -> None:
    written = [case["expected"] for group, cases in SQL_CASES.items() if group != "generated" for case in cases]

    assert len(written) >= 1000
    assert set(written) == {"true", "false", "null", "error", "parse-error"}


@pytest.mark.parametrize("group", SQL_CASES)
def test_sql_is_answered_as_apache_answered(group: str) -> None:
    wrong = [(our_answer(case), case) for case in SQL_CASES[group] if our_answer(case) != case["expected"]]

    assert wrong == []


@pytest.mark.parametrize("group", SQL_CASES)
def test_only_true_lets_a_message_pass(group: str) -> None:
    for case in SQL_CASES[group]:
        if case["expected"] == "parse-error":
            with pytest.raises(SubscriptionParseFailed):
                compile_sql(case["expression"])
        else:
            assert compile_sql(case["expression"])(case["properties"]) is (case["expected"] == "true"), case


@pytest.mark.parametrize("case", TAG_CASES, ids=lambda case: repr(case["tags"]))
def test_tags_are_answered_as_apache_answered(case: Case) -> None:
    assert our_answer(case) == case["expected"]
