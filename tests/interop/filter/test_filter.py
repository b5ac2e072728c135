"""Our filters beside Apache's, from its published jar: the whole table, and thousands of random expressions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.plugins.filter.answers import our_answer

from .generator import random_questions
from .judge import Question, ask_apache
from .write_cases import CASES, TAG_CASES, table, tag_table

RANDOM_CASES = 6000
SEEDS = (20240607, 20240608)

pytestmark = pytest.mark.timeout(600)


def differences(questions: list[Question], answers: list[str]) -> list[str]:
    return [
        f"Apache says {answer}, we say {ours}: {question}"
        for question, answer in zip(questions, answers, strict=True)
        if (ours := our_answer(question)) != answer
    ]


@pytest.mark.parametrize(("kept", "questions"), [(CASES, table()), (TAG_CASES, tag_table())], ids=["sql", "tags"])
def test_every_case_of_the_table_is_answered_as_apache_does(kept: Path, questions: list[Question]) -> None:
    answers = ask_apache(questions)

    assert differences(questions, answers) == []
    expected = [{**question, "expected": answer} for question, answer in zip(questions, answers, strict=True)]
    assert json.loads(kept.read_text()) == expected, "run python -m tests.interop.filter.write_cases"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_expressions_are_answered_as_apache_does(seed: int) -> None:
    questions = random_questions(seed, RANDOM_CASES)

    answers = ask_apache(questions)

    assert differences(questions, answers) == []
    # A generator that makes only refused expressions would prove nothing.
    seen = Counter(answers)
    assert min(seen[answer] for answer in ("true", "false", "null", "error", "parse-error")) > RANDOM_CASES // 50, seen
