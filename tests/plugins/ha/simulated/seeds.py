"""Seeds whose histories failed once: they run first, for ever."""

from __future__ import annotations

from pathlib import Path

SEEDS = Path(__file__).with_name("seeds.txt")


def failed_seeds() -> list[int]:
    lines = SEEDS.read_text().splitlines() if SEEDS.exists() else []
    return [int(line.partition("#")[0]) for line in lines if line.partition("#")[0].strip()]


def keep(seed: int) -> None:
    if seed not in failed_seeds():
        with SEEDS.open("a") as file:
            file.write(f"{seed}\n")
