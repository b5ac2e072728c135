"""The requests: QUERY_MESSAGE by key and VIEW_MESSAGE_BY_ID by place (RocketMQ: ``QueryMessageProcessor``).

An index knows hashes of keys and times in seconds; here each message that it names is looked at, so that an answer
has exactly what was asked for. That takes a worker thread: a search may follow a long chain and read old messages.
"""

from __future__ import annotations

from typing import Final

import anyio
import anyio.to_thread

from verniermq.kernel import Command, Connection, Context, RequestRefused, ResponseCode, StoredMessage
from verniermq.plugins.query.index import Index
from verniermq.plugins.query.keys import keys_of
from verniermq.protocol.query import QueryMessage, ViewMessage

SEARCHES: Final = 2
"""So many searches at a time; further ones wait, and sends and pulls go on."""

PATIENCE: Final = 2.0
"""Seconds that a query waits for an index that is being completed after a crash; then it gets what is there."""

_ROOM_FOR_HEADER: Final = 64 * 1024


class QueryHandlers:
    def __init__(
        self, broker: Context, index: Index, caught_up: anyio.Event, *, most: int, most_for_unique_key: int
    ) -> None:
        self._store = broker.store
        self._broker = broker
        self._index = index
        self._caught_up = caught_up
        self._most = most
        self._most_for_unique_key = most_for_unique_key
        self._most_bytes = broker.configuration.remoting.max_frame_size - _ROOM_FOR_HEADER
        self._searching = anyio.CapacityLimiter(SEARCHES)

    async def query(self, request: Command, connection: Connection) -> Command:
        """QUERY_MESSAGE: the newest messages of a topic that have a key and were stored in a span of time."""
        asked = QueryMessage.of(request)
        topic, key, begin, end = asked.topic, asked.key, asked.begin_ms, asked.end_ms
        # Of a key that is unique there is one, or a few copies: what a client wants at most does not count then.
        wanted = self._most_for_unique_key if asked.unique else min(asked.max_messages, self._most)
        with anyio.move_on_after(PATIENCE):
            await self._caught_up.wait()
        self._broker.catch_up()
        records = await anyio.to_thread.run_sync(
            self._search, topic, key, begin, end, wanted, limiter=self._searching, abandon_on_cancel=True
        )
        last = self._index.files[-1] if self._index.files else None
        fields = {
            "indexLastUpdateTimestamp": str(last.end_time if last else 0),
            "indexLastUpdatePhyoffset": str(last.end_offset if last else 0),
        }
        if not records:
            why = f"topic {topic!r} has no message with the key {key!r} that was stored from {begin} to {end}"
            return request.reply(ResponseCode.QUERY_NOT_FOUND, fields, remark=why)
        return request.reply(ResponseCode.SUCCESS, fields, records)

    def _search(self, topic: str, key: str, begin: int, end: int, wanted: int) -> list[bytes]:
        """The newest ``wanted`` records, oldest first, or fewer if they would not fit into a frame. In a thread."""
        found: dict[int, bytes] = {}
        room = self._most_bytes
        for offset in self._index.offsets(topic, key, begin, end):
            if len(found) >= wanted:
                break
            message = self._store.find_in_thread(offset) if offset not in found else None
            if message is None or not _fits(message, topic, key, begin, end):
                continue
            record = self._store.read(offset, message.size)
            if record is None:
                continue  # deleted in this moment
            room -= len(record)
            if room < 0 and found:
                break
            found[offset] = record
        return [found[offset] for offset in sorted(found)]

    async def view(self, request: Command, connection: Connection) -> Command:
        """VIEW_MESSAGE_BY_ID: the message that begins at a commit-log offset, which its offset message id names."""
        offset = ViewMessage.of(request).offset
        message = await self._store.find_message(offset)
        record = None if message is None else self._store.read(offset, message.size)
        if record is None:
            raise RequestRefused(self._store.why_no_message(offset), ResponseCode.SYSTEM_ERROR)
        return request.reply(body=record)


def _fits(message: StoredMessage, topic: str, key: str, begin: int, end: int) -> bool:
    in_time = begin <= message.store_timestamp <= end
    return in_time and message.topic == topic and key in keys_of(message.properties)
