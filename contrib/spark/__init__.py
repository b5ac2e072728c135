"""Topics as Spark DataFrames: ``spark.read.format("verniermq")``, streams, a sink, and an export that is ready to run.

In reading order::

    plugin.py     in the broker: serves ranges of a queue in large chunks (ranges.py), keeps figures (marks.py)
    source.py     what Spark sees: readers (stream.py) and writers (sink.py)
    java.py       finds a Java for Spark, python.py the Python of its workers; session.py starts Spark with the source
    export.py     the job behind ``verniermq spark export``; batches.py, typedbatches.py and tables.py are its parts
    listener.py   tells of the user's own streams, and publishes how far they are

Finding topics, fetching ranges and decoding them into columns is :mod:`verniermq.contrib.arrow`, which needs no Spark.

Nothing here imports pyspark, pyarrow or numpy before it needs them: the broker and the command line do without.
"""

from verniermq.contrib.spark.session import register, session

__all__ = ["register", "session"]
