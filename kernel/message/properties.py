"""Properties as they travel: one text, ``name 0x01 value 0x02 name 0x01 value 0x02``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"


def parse_properties(text: str) -> dict[str, str]:
    """Read a properties text. A pair without a name or a value is dropped and a later one wins, as in RocketMQ."""
    properties: dict[str, str] = {}
    for pair in text.split(VALUE_END):
        name, _, value = pair.partition(NAME_END)
        if value and name:
            properties[name] = value
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Write a properties text; every pair ends with 0x02, the last one too."""
    return "".join([f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items()])
