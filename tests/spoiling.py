"""Changing bytes of a log that somebody has written, as a failing disk does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SIZE: Final = -88
BODY_LENGTH: Final = -4
"""Where these begin, seen from the body."""


def spoil(store: Path, body: bytes, at: int = 0, bits: int = 1) -> int:
    """Change a byte of the newest record with that body, ``at`` bytes from where the body begins; say where."""
    with (store / "commitlog" / f"{0:020}").open("r+b") as file:
        whole = file.read(1 << 20)
        position = whole.rindex(body) + at
        file.seek(position)
        file.write(bytes((whole[position] ^ bits,)))
    return position
