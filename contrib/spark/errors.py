"""What can go wrong in Spark itself; what can go wrong with brokers is in :mod:`verniermq.contrib.arrow.errors`."""

from verniermq.contrib.arrow.errors import TableError


class SparkError(TableError):
    """The root of this package's errors."""
