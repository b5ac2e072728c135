"""What a session on one machine is started with."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from verniermq.contrib.spark.session import socket_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_go_through_sockets_that_nobody_else_can_reach(spark: SparkSession) -> None:
    folder = Path(str(spark.conf.get("spark.python.unix.domain.socket.dir")))

    rows = spark.sparkContext.parallelize(range(10), 2).map(lambda number: number + 1).collect()

    assert rows == list(range(1, 11))
    assert any(stat.S_ISSOCK(path.stat().st_mode) for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_whose_name_is_too_long_for_sockets_has_none(tmp_path: Path) -> None:
    assert socket_settings(Path("/tmp/verniermq-12345678"))
    assert socket_settings(tmp_path / ("x" * 80)) == {}
