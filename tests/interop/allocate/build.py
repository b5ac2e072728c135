"""The Java programs of this folder, built once."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from tests.interop.toolchains import BUILD, java_command, run_tool


def java_program(name: str) -> tuple[str, ...]:
    """What to run for the class ``verniermq.interop.<name>``."""
    home = BUILD / "home" / "allocate"
    return java_command("-Xmx256m", "-cp", _classpath(), f"verniermq.interop.{name}", home=home)


@functools.cache
def _classpath() -> str:
    build = BUILD / "allocate"
    run_tool("mvn", "-B", "-q", "compile", f"-Dallocate.build={build}", cwd=Path(__file__).parent)
    return f"{build}/classes{os.pathsep}{build}/lib/*"
