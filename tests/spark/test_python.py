"""The Python of Spark's processes: compiled packages instead of Spark's zips, and nothing else is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from verniermq.contrib.spark.python import local_python, make_shim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_s_zips_are_left_out_of_the_path_and_all_else_is_kept(tmp_path: Path) -> None:
    python = tmp_path / "a python's" / "bin"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    shim = make_shim(str(python), {}, tmp_path / "shims")
    zips = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    path = os.pathsep.join([*zips, "/mine/pyspark.zip", "/with blank/*"])
    code = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"

    done = subprocess.run(
        [shim, "-c", code, "x y", "$HOME", "*"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip

    assert done.stdout == "/mine/pyspark.zip:/with blank/*|x y|$HOME|*\n"


def test_tasks_import_what_pip_installed(spark: SparkSession) -> None:
    def origin(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    found = spark.sparkContext.parallelize([1], 1).map(origin).collect()

    import pyspark

    assert found == [pyspark.__file__]


def test_another_spark_s_own_packages_are_left_alone(tmp_path: Path) -> None:
    assert local_python({"SPARK_HOME": "/opt/spark"}, tmp_path) == sys.executable
    assert local_python({}, tmp_path) == str(next(tmp_path.rglob("python")))


def test_where_scripts_cannot_be_run_the_python_itself_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)

    assert local_python({}, tmp_path) == sys.executable
