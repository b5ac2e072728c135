"""A sink whose first task is slow in its second half the first time, so that Spark runs it once more beside itself.

What it sent before it became slow comes twice. Rows are large, so that they do not wait in a buffer for the slow ones.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark import TaskContext
from pyspark.sql import functions as f

from verniermq.contrib.spark import session

ROWS = 4000
TASKS = 4
QUICK = ROWS // TASKS // 2
"""Rows of the first task before it becomes slow."""


def main(master: str, name_server: str, conf: dict[str, str]) -> None:
    more = {"spark.executor.memory": "512m", "spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = session(master, {**conf, **more})
    spark.sparkContext.setLogLevel("ERROR")

    @f.udf("string", useArrow=False)
    def slowly(body: str, number: int) -> str:
        task = TaskContext.get()
        assert task is not None
        if task.partitionId() == 0 and task.attemptNumber() == 0 and number >= QUICK:
            time.sleep(0.1)
        return body

    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("id", "repeat('.', 1000) as body", "cast(id as string) as keys")
    slow = rows.withColumn("body", slowly("body", "id")).drop("id")
    source = {"nameServer": name_server}
    slow.write.format("verniermq").options(**source, topic="rows", batchSize="100").mode("append").save()

    found = spark.read.format("verniermq").options(**source, subscribe="rows").load()
    told = {"sent": ROWS, "rows": found.count(), "distinct": found.select("keys").distinct().count()}
    print("RESULT " + json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
