"""One broker and one Spark for all tests of this folder; each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.arrow.conftest import WITH_PLUGIN, Source, producing, shared_broker, source, topic
from verniermq.contrib.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["WITH_PLUGIN", "Source", "producing", "shared_broker", "source", "spark", "topic"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {
        "spark.sql.shuffle.partitions": "1",
        "spark.default.parallelism": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.streaming.metricsEnabled": "false",
    }
    running = session("local[2]", conf)
    running.sparkContext.setLogLevel("OFF")
    yield running
    running.stop()
