"""Topics as Arrow tables, without Spark and without Java: ``scan("orders")`` is what DuckDB and Polars take as a table.

In reading order::

    scan.py       a topic as a ``RecordBatchReader``
    export.py     the job behind ``verniermq export``; checkpoint.py, layout.py and tables/ are its parts
    compaction.py the one behind ``verniermq compact``
    values/       bodies with types
    options.py    what users may set; offsets.py is the arithmetic on offsets; plan.py makes spans of queues from both
    wire.py       a blocking connection; cluster.py finds topics and brokers with it
    fetch.py      the records of a span, batch after batch, however often the broker goes away meanwhile
    files.py      the same from a store's own files
    decode.py     records into Arrow columns (pairs.py and properties.py split properties), without a loop over them

:mod:`verniermq.contrib.spark` reads with the same parts. Nothing here imports pyarrow or numpy before it needs them.
"""

from verniermq.contrib.arrow.scan import scan

__all__ = ["scan"]
