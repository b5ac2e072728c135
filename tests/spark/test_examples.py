"""The example with Spark runs as it is written, in the Spark of these tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from verniermq.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = Path(__file__).parents[2] / "examples" / "spark_table.py"


def test_the_table_of_a_topic_is_shown(
    spark: SparkSession,
    shared_broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VERNIERMQ_NAMESRV", shared_broker.namesrv)

    exec(compile(PROGRAM.read_text(), str(PROGRAM), "exec"), {})

    shown = capsys.readouterr().out
    assert re.search(r"\|refund\| +2\|", shown)
    assert re.search(r"\| +sale\| +8\|", shown)
