"""A driver of the Java client whose virtual machine gets system properties: how that client is told most things."""

from __future__ import annotations

from pathlib import Path

from .drivers import Driver
from .toolchains import driver_command


def java_with(folder: Path, *properties: str) -> Driver:
    """``java_with(folder, "tls.enable=true")``: the newest Java client."""
    program, *others = driver_command("java5")
    return Driver("java5", (program, *[f"-D{one}" for one in properties], *others), folder)
