"""Asks the tables of an export some questions, with the jars that a format has for this Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def catalog(name: str, out: Path) -> dict[str, str]:
    """The settings of a catalog: the file that an export has for it."""
    prefix = f"spark.sql.catalog.{name}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": f"jdbc:sqlite:file:{out}/catalog.db",
        f"{prefix}.warehouse": f"file://{out}",
        f"{prefix}.jdbc.schema-version": "V1",
    }


def plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | str) else str(value)


def main(form: str, jars: str, out: Path, questions: dict[str, str]) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
    settings = DELTA if form == "delta" else catalog("verniermq", out / "tables")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for folder, table in (("tables", "orders"), ("tables", "orders__errors"), ("keyed", "accounts")):
        if form == "delta":
            rows = spark.read.format("delta").load(str(out / folder / "messages" / f"topic={table}"))
        elif folder == "tables":
            rows = spark.table(f"verniermq.mq.{table}")
        else:
            # A catalog has the name that is in its file; this one is the second, and is read by the newest metadata.
            newest = max((out / folder / "iceberg").rglob("*.metadata.json"))
            rows = spark.read.format("iceberg").load(str(newest))
        rows.createOrReplaceTempView(table)
    told = {
        name: [[plain(value) for value in row] for row in spark.sql(question).collect()]
        for name, question in questions.items()
    }
    print("RESULT " + json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
