"""The Python of the processes that Spark starts on this machine.

Spark puts a zip of pyspark before all else that they could import, and Python keeps no compiled form of what lies in a
zip: each would compile pyspark anew, 0.4 seconds of processor time, and an export waits for six of them one after the
other. The package that pip installed is the same and is compiled. So a small script leaves the zips out of
``PYTHONPATH`` and runs the real Python.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from verniermq.contrib.spark.shims import write_script

SHIM: Final = """#!/bin/sh
# Spark's zips of pyspark and py4j are the packages that this Python has, but not compiled.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case "$entry" in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) kept="$kept${{kept:+:}}$entry" ;;
    esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def local_python(environ: Mapping[str, str] = os.environ, shims: Path | None = None) -> str:
    """The ``PYSPARK_PYTHON`` of a Spark whose tasks run on this machine; ``shims`` is where a script for it goes."""
    found = find_spec("pyspark")
    from_pip = found is not None and found.origin and (Path(found.origin).parent / "python/lib/pyspark.zip").is_file()
    if not from_pip or "SPARK_HOME" in environ or os.name != "posix":  # another Spark, or no shell for the script
        return sys.executable
    try:
        return str(make_shim(sys.executable, environ, shims))
    except OSError:
        return sys.executable


def make_shim(python: str, environ: Mapping[str, str], shims: Path | None = None) -> Path:
    """A script that runs ``python`` without Spark's zips.

    Raises:
        OSError: there is no place for it.
    """
    return write_script("python", "python", SHIM.format(python=shlex.quote(python)), environ, shims)
