"""Reads a store's own files, where Spark sees the broker's disk: the option ``path``. No broker is asked.

The queues' files have their full length from the start, so their end is where the entries stop being filled in. A
broker writes its newest entries about once a second; what is newer than that is read the next time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from verniermq.contrib.arrow.cluster import Bounds
from verniermq.contrib.arrow.errors import BadOption, DataLost, NoSuchTopic
from verniermq.contrib.arrow.offsets import Span
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.requests import ENTRY, HEAD_BYTES
from verniermq.kernel import MessageQueue

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

logger = logging.getLogger(__name__)

BROKER: Final = "store"
"""What stands for the broker's name in offsets: the files do not say it."""

BLANK_SIZE: Final = 0x7FFFFFFF
STEP: Final = 16_384


def _starts(directory: Path) -> list[int]:
    """Where the files of a folder begin; each is named after that."""
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(int(name) for name in names if len(name) == 20 and name.isdecimal())


class StoreFiles:
    """The queues of a store."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        if not (self.path / "commitlog").is_dir():
            raise BadOption("path", path, "the folder of a store, with commitlog and consumequeue in it")

    def close(self) -> None:
        """Nothing stays open."""

    def topics(self) -> list[str]:
        folder = self.path / "consumequeue"
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def queues(self, topics: Sequence[str]) -> list[MessageQueue]:
        known = self.topics()
        missing = [topic for topic in topics if topic not in known]
        if missing:
            raise NoSuchTopic(missing, str(self.path), known)
        return sorted(
            MessageQueue(topic, BROKER, int(name))
            for topic in topics
            for name in os.listdir(self.path / "consumequeue" / topic)
            if name.isdecimal()
        )

    def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Bounds]:
        log = _starts(self.path / "commitlog")
        lowest = log[0] if log else 0
        return {queue: self._bounds(queue, lowest) for queue in queues}

    def _bounds(self, queue: MessageQueue, lowest: int) -> Bounds:
        files = QueueFile.all_of(self.path, queue)
        high = 0
        for file in reversed(files):
            high = file.first + file.bisect(lambda entry: entry[1] > 0)
            if high > file.first:
                break
        low = high
        for file in files:
            gone = file.bisect(lambda entry: entry[1] == BLANK_SIZE or (entry[1] > 0 and entry[0] < lowest))
            if gone < file.count:
                low = file.first + gone
                break
        return Bounds(min(low, high), high)

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        bound = self.bounds([queue])[queue]
        low, high = bound.low, bound.high
        log = Log(self.path)
        while low < high:
            middle = (low + high) // 2
            entries = read_entries(self.path, queue, middle, 1)
            record = log.read(*ENTRY.unpack(entries)[:2]) if entries else None
            if record is None or _store_timestamp(record) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low


def _store_timestamp(record: memoryview) -> int:
    at = 68 if record[39] & 0x10 else 56
    return int.from_bytes(record[at : at + 8], "big", signed=True)


class QueueFile:
    """One file of a consume queue."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self.first = start // ENTRY.size
        self.count = path.stat().st_size // ENTRY.size

    @classmethod
    def all_of(cls, store: Path, queue: MessageQueue) -> list[QueueFile]:
        folder = store / "consumequeue" / queue.topic / str(queue.queue_id)
        return [cls(folder / f"{start:020d}", start) for start in _starts(folder)]

    def bisect(self, holds: Callable[[tuple[int, int, int]], bool]) -> int:
        """How many entries at the beginning have a property that only the first ones have."""
        low, high = 0, self.count
        with self.path.open("rb") as file:
            while low < high:
                middle = (low + high) // 2
                file.seek(middle * ENTRY.size)
                offset, size, code = ENTRY.unpack(file.read(ENTRY.size))
                if holds((offset, size, code)):
                    low = middle + 1
                else:
                    high = middle
        return low


def read_entries(store: Path, queue: MessageQueue, offset: int, count: int) -> bytes:
    """Entries from an offset on, at most to the end of one file."""
    for file in QueueFile.all_of(store, queue):
        if file.first <= offset < file.first + file.count:
            with file.path.open("rb") as opened:
                opened.seek((offset - file.first) * ENTRY.size)
                return opened.read(min(count, file.first + file.count - offset) * ENTRY.size)
    return b""


class Log:
    """The commit log's files, mapped when they are needed."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "commitlog"
        starts = _starts(self._folder)
        self._size = (self._folder / f"{starts[0]:020d}").stat().st_size if starts else 1
        self._maps: dict[int, memoryview] = {}

    def read(self, offset: int, size: int) -> memoryview | None:
        """Bytes of one file, or ``None`` when it is gone, or ends before them."""
        start = offset - offset % self._size
        found = self._maps.get(start)
        if found is None:
            try:
                with (self._folder / f"{start:020d}").open("rb") as file:
                    found = self._maps[start] = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
            except FileNotFoundError:
                return None
        piece = found[offset - start : offset - start + size]
        return piece if len(piece) == size else None

    def are_in_different_files(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each record lies in another file than the next one."""
        files = places // self._size
        different: npt.NDArray[np.bool_] = files[:-1] != files[1:]
        return different

    def close(self) -> None:
        """A file is let go when the last piece of it is."""
        self._maps.clear()


class FileReader:
    """Reads spans from the files; one per task."""

    def __init__(self, options: ReadOptions) -> None:
        if options.sub_expression and options.expression_type != "TAG":
            raise BadOption("expressionType", options.expression_type, "TAG: with path no broker can test properties")
        self._options = options
        self._path = Path(options.path)
        self._log = Log(self._path)

    def close(self) -> None:
        self._log.close()

    def batches(self, span: Span, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            DataLost: messages are not there any more, and that matters.
        """
        from verniermq.contrib.arrow.decode import decode_columns, decode_heads
        from verniermq.contrib.arrow.fetch import heads_will_do
        from verniermq.contrib.arrow.tags import TagTest

        test = TagTest.of(self._options)
        heads = heads_will_do(self._options, columns)
        position = span.begin
        while position < span.end:
            entries = read_entries(self._path, span.queue, position, min(STEP, span.end - position))
            count, pieces = self._read_heads(entries) if heads else self._read(entries)
            if not count:
                position = self._skip(span, position)
                continue
            position += count
            if heads:
                read = b"".join([*pieces, entries[: count * ENTRY.size]])
                yield decode_heads(read, columns, span.queue.topic, sum(map(len, pieces)))
                continue
            batch = decode_columns(
                b"".join([*pieces, entries[: count * ENTRY.size]]),
                test.with_tags(columns),
                record_bytes=sum(map(len, pieces)),
                check_crc=self._options.check_crc,
                decompress=self._options.decompress,
                max_body_size=self._options.max_body_size,
            )
            batch = test.only(batch, columns)
            if batch.num_rows:
                yield batch

    def _read(self, entries: bytes) -> tuple[int, list[memoryview]]:
        """The records of some entries, up to the first that is gone; those that lie side by side are one piece."""
        if not entries:
            return 0, []
        import numpy as np

        from verniermq.contrib.arrow.places import parse_places

        places, sizes = parse_places(entries)
        ends = places + sizes
        apart = (ends[:-1] != places[1:]) | self._log.are_in_different_files(places)
        firsts = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(places)])).tolist()
        count, pieces = 0, []
        for first, following in pairwise(firsts):
            place = int(places[first])
            piece = self._log.read(place, int(ends[following - 1]) - place)
            if piece is None:
                break
            pieces.append(piece)
            count = following
        return count, pieces

    def _read_heads(self, entries: bytes) -> tuple[int, list[memoryview]]:
        """The beginning of each record, up to the first that is gone."""
        pieces: list[memoryview] = []
        for place, size, _ in ENTRY.iter_unpack(entries):
            piece = self._log.read(place, min(size, HEAD_BYTES))
            if piece is None:
                break
            pieces.append(piece)
        return len(pieces), pieces

    def _skip(self, span: Span, position: int) -> int:
        low = StoreFiles(self._options.path).bounds([span.queue])[span.queue].low
        following = min(max(low, position + 1), span.end)
        why = f"the queue begins at {low} now: the broker deleted old files"
        if self._options.fail_on_data_loss:
            raise DataLost(span.queue, position, following, why)
        logger.warning("offsets %d to %d of %s are skipped: %s", position, following, span.queue, why)
        return following
