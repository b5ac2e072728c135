"""A Spark session with ``format("verniermq")`` in it, and a Java under it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from verniermq.contrib.spark.bundle import write_bundle
from verniermq.contrib.spark.errors import SparkError
from verniermq.contrib.spark.java import use_java
from verniermq.contrib.spark.python import local_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NoSpark(SparkError):
    def __init__(self, why: object) -> None:
        super().__init__(f"this needs Spark: pip install 'verniermq[spark]' ({why})")


DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow in Java checks every single access, and Spark has tested for nulls already. Our batches come from Arrow."""


def session(master: str | None = None, conf: Mapping[str, str] | None = None, name: str = "verniermq") -> SparkSession:
    """Start Spark, or take the session that runs already, and register the source.

    On a cluster the package travels along: executors need Python, pyarrow, numpy and VernierMQ's own dependencies.

    Args:
        master: ``local[*]`` unless it is given here or in ``SPARK_MASTER``; ``spark://…``, ``yarn``, ``k8s://…``

    Raises:
        NoJava: there is no Java that Spark could use.
        NoSpark: pyspark is not installed.
    """
    use_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NoSpark(error) from error
    where = master or os.environ.get("SPARK_MASTER") or "local[*]"
    bundle: Path | None = None
    if where.startswith("local"):
        # On one machine the workers are this Python, and nothing has to be reached from outside.
        os.environ.setdefault("PYSPARK_PYTHON", local_python())
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        # Spark's own Python processes on this machine find the package through the environment.
        bundle = Path(tempfile.mkdtemp(prefix="verniermq-")) / "verniermq.zip"
        write_bundle(bundle)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(bundle), os.environ.get("PYTHONPATH"))))
    builder = SparkSession.builder.appName(name).master(where)
    settings = {**DEFAULTS, **(conf or {})}
    for side in ("driver", "executor"):
        name_of = f"spark.{side}.extraJavaOptions"
        settings[name_of] = f"{JAVA_OPTIONS} {settings.get(name_of, '')}".strip()
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if bundle is not None:
        spark.sparkContext.addPyFile(str(bundle))
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make ``format("verniermq")`` known to a session that was started some other way."""
    from verniermq.contrib.spark.source import VernierMQSource

    spark.dataSource.register(VernierMQSource)
