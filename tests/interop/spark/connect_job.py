"""What a client of Spark Connect does that has pyspark alone: a table, a stream, a sink."""

from __future__ import annotations

import importlib.util
import json
import sys

from pyspark.sql import SparkSession

ROWS = 1000


def main(address: str, name_server: str, folder: str) -> None:
    assert importlib.util.find_spec("verniermq") is None
    spark = SparkSession.builder.remote(address).getOrCreate()
    source = {"nameServer": name_server}
    rows = spark.range(ROWS).selectExpr("concat('order ', id) as body", "cast(id as string) as keys")
    rows.write.format("verniermq").options(**source, topic="copies").mode("append").save()

    table = spark.read.format("verniermq").options(**source, subscribe="copies").load()

    stream = spark.readStream.format("verniermq").options(**source, subscribe="copies", startingOffsets="earliest")
    query = (
        stream.load()
        .select("keys")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()
    told = {
        "table": table.count(),
        "stream": spark.read.parquet(f"{folder}/rows").distinct().count(),
        "copies": table.select("keys").distinct().count(),
    }
    print("RESULT " + json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
