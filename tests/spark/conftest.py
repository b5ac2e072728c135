"""One broker and one Spark for all tests of this folder; each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.arrow.conftest import WITH_PLUGIN, Source, producing, shared_broker, source, topic
from verniermq.contrib.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent

__all__ = ["WITH_PLUGIN", "Source", "producing", "shared_broker", "source", "spark", "topic"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A Java that is interrupted is of no use to the tests behind it either."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.timeout(900))


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
