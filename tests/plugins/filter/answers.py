"""Our filters' answers in the words of the tables: true, false, null, error, parse-error."""

from __future__ import annotations

from typing import Any

from verniermq.kernel import SubscriptionParseFailed
from verniermq.plugins.filter.sql.evaluator import compile_condition
from verniermq.plugins.filter.sql.javavalues import NotComparable
from verniermq.plugins.filter.sql.parser import parse
from verniermq.plugins.filter.tag import compile_tags

WORDS = {True: "true", False: "false", None: "null"}


def our_answer(question: dict[str, Any]) -> str:
    """The answer to ``{"expression": …, "properties": {…}}`` or ``{"tags": …}``."""
    try:
        if "tags" in question:
            codes = compile_tags(question["tags"], max_tags=1000).tag_codes
            return "*" if codes is None else str(sorted(codes))
        ask = compile_condition(parse(question["expression"], max_length=4096, max_depth=64))
    except SubscriptionParseFailed:
        return "parse-error"
    try:
        return WORDS[ask(question["properties"])]
    except NotComparable:
        return "error"
