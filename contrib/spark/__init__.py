"""Topics as Spark DataFrames: ``spark.read.format("verniermq")``, streams, a sink, and an export that is ready to run.

In reading order::

    plugin.py     in the broker: serves ranges of a queue in large chunks (ranges.py), keeps figures (marks.py)
    wire.py       a blocking connection for Spark's Python workers; cluster.py finds topics and brokers with it
    decode.py     records into Arrow columns (properties.py splits their properties), without a loop over records
    options.py    what users may set; offsets.py is the arithmetic on offsets
    fetch.py      the records of a range, batch after batch, however often the broker goes away meanwhile
    source.py     what Spark sees: readers (batch.py, stream.py) and writers (sink.py)
    java.py       finds a Java for Spark; session.py starts Spark with the source registered
    export.py     the job behind ``verniermq spark export``; tables.py and progress.py are its parts

Nothing here imports pyspark, pyarrow or numpy before it needs them: the broker and the command line do without.
"""

from verniermq.contrib.spark.session import register, session

__all__ = ["register", "session"]
