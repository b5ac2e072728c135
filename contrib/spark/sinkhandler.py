"""SEND_ROWS in the broker: a task's messages are stored once, however often Spark runs the task.

A request says which task it is of and which rows it has. Those that the log has are dropped, the others are sent as if
they came alone. Requests of one task wait for each other: Spark may run a slow task a second time beside the first.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import anyio

from verniermq.contrib.arrow.requests import SendRows
from verniermq.contrib.spark.sinkrows import SinkRows, SinkTask, parse_rows
from verniermq.kernel import (
    Appended,
    Command,
    Connection,
    Context,
    InvalidParameter,
    ResponseCode,
)


class SinkHandler:
    def __init__(self, broker: Context, stored: SinkRows) -> None:
        self._broker = broker
        self._stored = stored
        self._locks: WeakValueDictionary[SinkTask, anyio.Lock] = WeakValueDictionary()
        self.dropped = 0
        """Rows that came again."""

    async def send_rows(self, request: Command, connection: Connection) -> Command:
        asked = SendRows.of(request)
        try:
            task = SinkTask.parse(asked.task, asked.topic)
        except ValueError as error:
            raise InvalidParameter(f"task {asked.task!r:.60}: expected <query>/<batch>/<partition> ({error})") from None
        rows = parse_rows(asked.rows)
        lock = self._locks.setdefault(task, anyio.Lock())
        async with lock:
            self._broker.catch_up()
            stored = self._stored.of(task)
            fresh = [number for number, row in enumerate(rows) if row not in stored]
            dropped = len(rows) - len(fresh)
            self.dropped += dropped
            if not fresh:
                return await self._repeated(request)
            answer = self._broker.send(self._send(request, asked, fresh if dropped else None, len(rows)), connection)
            if not isinstance(answer, Command):
                answer = await answer
            self._broker.catch_up()
        return answer

    async def _repeated(self, request: Command) -> Command:
        """All of it is stored; whether it may be acknowledged is asked again."""
        code, remark = ResponseCode.SUCCESS, ""
        if self._broker.must_confirm({}):
            code, remark = await self._broker.confirm(Appended(self._broker.store.end, 0, 0, 0, 0, b""))
        return request.reply(code, remark=remark)

    def _send(self, request: Command, asked: SendRows, fresh: list[int] | None, count: int) -> Command:
        """The request as an ordinary send, with some of its messages only."""
        body = bytes(request.body)
        if fresh is not None:
            items = split_batch(body)
            if len(items) != count:
                raise InvalidParameter(f"the batch has {len(items)} messages, and rows names {count}")
            body = b"".join([items[number] for number in fresh])
        return asked.send(request, body)


def split_batch(body: bytes) -> list[bytes]:
    """The messages of a batch, each as it is: four bytes say how long one is.

    Raises:
        InvalidParameter: the lengths do not add up.
    """
    items: list[bytes] = []
    position = 0
    while position < len(body):
        size = int.from_bytes(body[position : position + 4], "big")
        if size < 4 or position + size > len(body):
            raise InvalidParameter(f"message {len(items)} of the batch, at byte {position}, has a length of {size}")
        items.append(body[position : position + size])
        position += size
    return items
