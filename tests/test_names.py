"""One name means one thing: no two classes of the source share theirs, no file is named by a gerund, and what
a docstring says of arguments and errors has one form."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("kernel", "protocol", "plugins", "client", "cli", "testing", "contrib")

SHARED = {"Config", "Plugin", "ClientPlugin", "Command", "VernierMQBroker"}
"""Names that a caller looks up: the plugin host, Django, and the packages that adapters adapt to."""
SYNC = "client/sync/"
"""The plain face of the client has the names of the async one."""
CODECS = "contrib/codecs/"
"""A codec is chosen by its module."""
NOUNS = {"listing", "mapping", "pending"}


def source() -> list[Path]:
    return [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "example_plugin" not in path.parts]


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in source():
        where = path.relative_to(ROOT).as_posix()
        if where.startswith((SYNC, CODECS)):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in SHARED:
                places[node.name].append(f"{where}:{node.lineno}")
    assert len(places) > 500

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_file_is_named_by_a_gerund() -> None:
    gerunds = [path for path in source() if path.stem.endswith("ing") and path.stem not in NOUNS]

    assert [path.relative_to(ROOT).as_posix() for path in gerunds] == []


def test_docstrings_name_arguments_and_errors_in_one_form() -> None:
    others = re.compile(r":(param|raises|returns?|rtype)\b.*:")
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in source()
        for line in path.read_text().splitlines()
        if others.search(line)
    ]

    assert lines == []
