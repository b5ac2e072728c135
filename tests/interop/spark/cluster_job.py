"""What a user's program on a cluster does: a table, a stream, a sink. Prints what came of it as one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from verniermq.contrib.spark import session


def main(master: str, name_server: str, folder: Path) -> None:
    spark = session(master, {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "1"})
    spark.sparkContext.setLogLevel("ERROR")
    source = {"nameServer": name_server}

    rows = spark.range(1000).selectExpr("concat('order ', id) as body", "cast(id as string) as keys")
    rows.write.format("verniermq").options(**source, topic="orders").mode("append").save()

    table = spark.read.format("verniermq").options(**source, subscribe="orders").load()

    stream = spark.readStream.format("verniermq").options(**source, subscribe="orders", startingOffsets="earliest")
    query = (
        stream.load()
        .select("body", "keys")
        .writeStream.format("verniermq")
        .options(**source, topic="copies")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copies = spark.read.format("verniermq").options(**source, subscribe="copies").load()
    told = {
        "rows": table.count(),
        "copies": copies.count(),
        "keys": copies.select("keys").distinct().count(),
        "executors": table.rdd.mapPartitions(lambda _: [sys.executable]).distinct().collect(),
    }
    print("RESULT " + json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
