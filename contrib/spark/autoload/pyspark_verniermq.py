"""Registers ``format("verniermq")`` by being importable: Spark looks for top-level modules called ``pyspark_*``.

It must never raise: one such module that does makes all of them vanish. So without pyspark's data sources, or with a
VernierMQ that cannot be imported, it offers nothing.
"""

try:
    from verniermq.contrib.spark.source import VernierMQSource as DefaultSource
except Exception:  # whatever the reason, others' sources must still be found
    __all__ = []
else:
    __all__ = ["DefaultSource"]
