"""``NAME=VALUE`` options, as properties."""

from __future__ import annotations

from collections.abc import Iterable

import click


def parse_properties(texts: Iterable[str]) -> dict[str, str]:
    """
    Raises:
        click.UsageError: one of them is no ``NAME=VALUE``.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--property {text!r}: expected NAME=VALUE")
        found[name] = value
    return found
