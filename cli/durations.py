"""Options that are a time, such as ``--delay 90s``."""

from __future__ import annotations

from typing import Final

import click
from click.types import FuncParamType

from verniermq.kernel import parse_duration


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


DURATION: Final = FuncParamType(_seconds)
"""Seconds, written as in ``broker.toml``."""
DURATION.name = "time"
