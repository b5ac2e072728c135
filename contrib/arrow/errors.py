"""What can go wrong between topics and tables; each says what to do."""

from __future__ import annotations

from collections.abc import Iterable

from verniermq.kernel import MessageQueue, VernierMQError, is_system_topic, nearest


class TableError(VernierMQError):
    """The root of this package's errors."""


class BadOption(TableError):
    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"option {option!r} is {value!r}, expected {expected}")


class UnknownTableOption(TableError):
    def __init__(self, option: str, known: Iterable[str]) -> None:
        super().__init__(f"format('verniermq') has no option {option!r}; {nearest(option, known)}")


class NoSuchTopic(TableError):
    def __init__(self, topics: Iterable[str], name_server: str, known: Iterable[str]) -> None:
        names = ", ".join(repr(topic) for topic in topics)
        some = sorted(topic for topic in known if not topic.startswith("%") and not is_system_topic(topic))
        there = f"it has {', '.join(some[:20])}{' …' if len(some) > 20 else ''}" if some else "it has no topics yet"
        super().__init__(f"topic {names} does not exist on the name server {name_server}; {there}")


class OffsetOutOfRange(TableError):
    def __init__(self, queue: MessageQueue, offset: int, low: int, high: int, option: str) -> None:
        super().__init__(
            f"{option} has offset {offset} for {queue}, which has {low} to {high}; "
            "use an offset in between, 'earliest' or 'latest', or set failOnDataLoss=false"
        )


class DataLost(TableError):
    """Messages that should have been read are not there any more."""

    def __init__(self, queue: MessageQueue, begin: int, end: int, why: str) -> None:
        super().__init__(
            f"offsets {begin} to {end} of {queue} are lost: {why}. To go on with what is left, set "
            "failOnDataLoss=false; to keep more, keep files longer on the broker or read more often"
        )


class BrokerGone(TableError):
    def __init__(self, what: str, seconds: float, why: object) -> None:
        super().__init__(
            f"{what}: tried for {seconds:g} s, the last time: {why}; "
            "the task can be run again, and the option retryTimeout makes it wait longer"
        )


class ClusterUnreachable(TableError):
    def __init__(self, why: object) -> None:
        super().__init__(
            f"no name server answered: {why}; start one with: verniermq broker, or give its address: --namesrv"
        )


class NoArrow(TableError):
    def __init__(self, why: object) -> None:
        super().__init__(f"this needs pyarrow and numpy: pip install 'verniermq[arrow]' ({why})")


class BadFormat(TableError):
    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"format {name!r} is none of {', '.join(known)}")


class FormatChanged(TableError):
    def __init__(self, out: object, found: str, wanted: str) -> None:
        super().__init__(f"{out} has an export as {found}; to export as {wanted}, use another folder")


class PartitionsChanged(TableError):
    def __init__(self, out: object, found: str, wanted: str) -> None:
        super().__init__(f"{out} has an export by {found}; to export by {wanted}, use another folder")


class NoTableLibrary(TableError):
    def __init__(self, name: str, why: object) -> None:
        super().__init__(f"format {name} needs more packages: pip install 'verniermq[{name}]' ({why})")


class NoValueLibrary(TableError):
    def __init__(self, form: str, extra: str, why: object) -> None:
        super().__init__(f"valueFormat={form} needs another package: pip install 'verniermq[{extra}]' ({why})")


class TableChanged(TableError):
    """A table is not as the export left it."""

    def __init__(self, table: str, batch: str, why: object) -> None:
        text = " ".join(str(why).split())
        super().__init__(
            f"batch {batch} does not fit {table}: {text}. Nothing of the batch is in the table; mend the table or use "
            "another folder, and run the export again"
        )


class TooManyFolders(TableError):
    def __init__(self, topic: str, batch: str, columns: str, most: int) -> None:
        super().__init__(
            f"batch {batch} has more than {most} folders of {topic} by {columns}: columns with so many values do not "
            "suit --partition-by. Nothing of the batch is there; use other columns and another folder"
        )


class DiskFull(TableError):
    """The output cannot be written."""

    def __init__(self, out: object, why: object) -> None:
        super().__init__(f"{out} cannot be written: {why}. Batches before this one are whole; run the export again")

    @classmethod
    def or_else(cls, error: OSError, out: object) -> Exception:
        """The same as one line, if it is about files: a network's errors have their own."""
        return error if isinstance(error, ConnectionError | TimeoutError) else cls(out, error)
