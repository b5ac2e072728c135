"""Every command that an error, a docstring or a page advises exists: ours in the parser, Apache's in its list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from verniermq.cli import main

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernel", "protocol", "plugins", "client", "cli", "contrib", "testing")
MQADMIN = (ROOT / "tests" / "mqadmin-5.5.0.txt").read_text().split()

OURS = re.compile(r"(?<![\w./-])verniermq((?: +(?:--)?[a-z][\w-]*)+)")
SPAN = re.compile(r"`verniermq((?: +[^\s`|]+)+)`")
THEIRS = re.compile(r"(?<![\w./-])mqadmin +([a-z]\w+)")
NO_COMMANDS = {"client", "task", "verniermq-order-numbers"}
"""What follows the word elsewhere: names of threads, and of another package after ``pip install``."""


def texts() -> Iterator[tuple[str, str]]:
    """What people read: every string in the code, every piece of code in the pages."""
    for file in sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
                yield f"{file.relative_to(ROOT)}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value
    for file in [*sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*.md"), ROOT / "broker.toml"]:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            yield f"{file.relative_to(ROOT)}:{number}", line


def advised(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    return [(place, match[1].strip()) for place, text in texts() for match in pattern.finditer(text)]


def complaint(words: list[str]) -> str | None:
    """What is wrong with a command line of ours; words of a sentence may follow it."""
    command: click.Command = main
    context = click.Context(main)
    for number, word in enumerate(words):
        if word.startswith("--"):
            known = {name for option in command.get_params(context) for name in (*option.opts, *option.secondary_opts)}
            return None if word in {*known, "--help", "--version"} else f"{command.name} has no option {word}"
        if not isinstance(command, click.Group):
            return None
        found = command.get_command(context, word)
        if found is None:
            return None if number and command is not main and len(words) > number + 1 else f"there is no {word}"
        command = found
    return None


def test_our_commands_exist() -> None:
    found = [(place, words.split()) for place, words in advised(OURS)]
    assert len(found) > 100, "the search finds hardly anything; the test is broken"

    wrong = [
        f"{place}: verniermq {' '.join(words)}: {why}"
        for place, words in found
        if words[0] not in NO_COMMANDS and (why := complaint(words)) is not None
    ]

    assert not wrong, "\n".join(wrong)


def surplus(words: list[str]) -> str | None:
    """The word that a command would not take, right after its name; of a whole command line."""
    command: click.Command = main
    context = click.Context(main)
    for word in words:
        if isinstance(command, click.Group) and (found := command.get_command(context, word)) is not None:
            command = found
        else:
            takes_any = any(isinstance(parameter, click.Argument) for parameter in command.get_params(context))
            return None if takes_any or word.startswith("-") else word
    return None


def test_our_commands_take_the_arguments_that_are_shown() -> None:
    found = [(place, words.split()) for place, words in advised(SPAN)]
    assert len(found) > 50, "the search finds hardly anything; the test is broken"

    assert [(place, words) for place, words in found if surplus(words) is not None] == []
    assert surplus(["dlq", "list", "billing"]) == "billing"


def test_commands_of_mqadmin_exist() -> None:
    found = advised(THEIRS)
    assert len(MQADMIN) == 96
    assert len(found) > 10

    wrong = [f"{place}: mqadmin {name}" for place, name in found if name not in MQADMIN]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("words", ["resend", "dlq send", "broker --no-such", "topic exhibit"])
def test_a_command_that_does_not_exist_is_found_out(words: str) -> None:
    assert complaint(words.split()) is not None
