"""What a run of ``bench/spark.py`` found, as JSON: the machine, and each figure that its tables show."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from cpu import Rate
from sidebyside.machine import description

from verniermq.contrib.arrow.pairs import PAIRS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULTS = Path(__file__).with_name("results")


def machine(spark: SparkSession) -> dict[str, str]:
    about = description()
    del about["rocketmq"]
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return {
        **about,
        "java": str(jvm.java.lang.System.getProperty("java.runtime.version")),
        "spark": spark.version,
        "properties": "numpy" if PAIRS is None else "compiled",
    }


@attrs.define
class Figures:
    """Filled while the tables are shown; a run is written once, at its end."""

    machine: Mapping[str, str]
    options: Mapping[str, Any]
    started: datetime.datetime = attrs.Factory(lambda: datetime.datetime.now(datetime.UTC))
    found: dict[str, dict[str, Any]] = attrs.Factory(dict)
    """Part → what was measured → its figures."""

    def note(self, part: str, what: str, **figures: float | Sequence[float] | Mapping[str, float]) -> None:
        self.found.setdefault(part, {})[what] = figures

    def rate(self, part: str, what: str, rate: Rate, ratio: float) -> None:
        cpu = {who: round(us, 3) for who, us in rate.cpu.items()}
        rows = round(rate.rows)
        self.note(part, what, rows_per_second=rows, ratio=round(ratio, 3), each=rate.each, cpu_us_per_row=cpu)

    def write(self, *, whole: bool) -> Path:
        """Beside other results, or among those of partial runs, which are not kept."""
        path = RESULTS / ("" if whole else "partial") / "spark.json"
        path.parent.mkdir(exist_ok=True)
        about = {"measured": self.started.isoformat(timespec="seconds"), "machine": self.machine}
        path.write_text(json.dumps({**about, "options": self.options, **self.found}, indent=1) + "\n")
        return path
