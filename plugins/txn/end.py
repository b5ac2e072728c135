"""END_TRANSACTION: a producer says what became of its transaction (RocketMQ: ``EndTransactionProcessor``).

The request names the half message twice, by its place in the log and by its place in the half queue, and its
producer group; all three must agree with what is stored. A commit puts the real message first and notes the
half message as done second: a crash between the two asks the producer once more rather than lose it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    HALF_TOPIC,
    Answer,
    Appended,
    Command,
    Connection,
    Context,
    Histogram,
    PendingMessage,
    Property,
    RequestRefused,
    ResponseCode,
    StoredMessage,
    SysFlag,
    Work,
    then,
)
from verniermq.plugins.txn.half import (
    immunity_ms,
    make_real,
)
from verniermq.plugins.txn.table import OpenHalf, OpenTable
from verniermq.protocol.transaction import EndTransaction

AGES: Final = (5.0, 60.0, 600.0, 3600.0, 43200.0, 86400.0)
"""Apache's ranges, in seconds."""


class EndHandler:
    def __init__(self, broker: Context, table: OpenTable, timeout_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._table = table
        self._timeout_ms = timeout_ms
        self.committed: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        """By the topic that the message goes to."""
        self.ages: dict[str, Histogram] = {}
        """Seconds from the birth of a message to its commit, by topic."""

    def end(self, request: Command, connection: Connection) -> Answer | Work:
        end = EndTransaction.of(request)
        outcome = end.outcome
        if outcome not in (SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK):
            return None  # "unknown": the next check asks again, and the request gets no answer, as with RocketMQ
        half = self._validated(end)
        entries = self._open(half)
        if outcome == SysFlag.TRANSACTION_ROLLBACK:
            self.rolled_back[half.properties.get(Property.REAL_TOPIC, "")] += 1
            return self._answer(request, self._table.end(entries))
        message = self._real(half)
        waiting = self._broker.before_append(message)
        return then(waiting, lambda: self._answer(request, self._commit(half, message)))

    def _real(self, half: StoredMessage) -> PendingMessage:
        try:
            message = make_real(half)
        except (KeyError, ValueError) as error:
            raise RequestRefused(f"the half message does not say where it is meant to go: {error!r}") from error
        if message.topic not in self._broker.topics:
            # Deleted since. A send would make it again, so a commit does, as large as the template.
            default_queues = self._broker.configuration.topics.default_queues
            self._broker.topics.for_send(message.topic, AUTO_CREATE_TOPIC, default_queues)
        message.queue_id = self._broker.topics.for_delivery(message.topic, message.queue_id)
        return message

    def _commit(self, half: StoredMessage, message: PendingMessage) -> Appended:
        entries = self._open(half)  # asked again: another answer may have come while a plugin took its time
        self._broker.store.append(message)
        topic = half.properties.get(Property.REAL_TOPIC, "")
        self.committed[topic] += 1
        age = self._broker.clock.now_ms() - half.born_timestamp
        self.ages.setdefault(topic, Histogram(AGES)).observe(max(0, age // 1000))
        return self._table.end(entries)

    def _answer(self, request: Command, done: Appended) -> Command | Coroutine[Any, Any, Command]:
        if request.is_oneway or not self._broker.must_confirm({}):
            return request.reply()
        return self._confirmed(request, done)

    async def _confirmed(self, request: Command, done: Appended) -> Command:
        code, remark = await self._broker.confirm(done)
        return request.reply(code, remark=remark)

    # --- checking the request --------------------------------------------------------------

    def _validated(self, end: EndTransaction) -> StoredMessage:
        """The half message that a request is about.

        Raises:
            RequestRefused: there is none, it is somebody else's, or the answer comes too late.
        """
        group, queue_offset, log_offset = end.group, end.half_offset, end.log_offset
        half = self._broker.store.message_at(log_offset)
        if half is None or half.topic != HALF_TOPIC:
            why = "" if half is not None else f": {self._broker.store.why_no_message(log_offset)}"
            raise RequestRefused(f"there is no half message at commit-log offset {log_offset}{why}")
        if not end.from_check:
            self._refuse_late(half)
        owner = half.properties.get(Property.PRODUCER_GROUP)
        if owner != group:
            raise RequestRefused(f"the half message belongs to producer group {owner!r}, not to {group!r}")
        if half.queue_offset != queue_offset:
            raise RequestRefused(f"the half message has queue offset {half.queue_offset}, not {queue_offset}")
        return half

    def _refuse_late(self, half: StoredMessage) -> None:
        """A producer that set a time of its own may answer within it; later only when it is asked."""
        if Property.CHECK_IMMUNITY_TIME not in half.properties:
            return
        limit = max(immunity_ms(half, self._timeout_ms()), self._timeout_ms())
        age = self._broker.clock.now_ms() - half.born_timestamp
        if age > limit:
            raise RequestRefused(
                f"the answer comes {age} ms after the message was made, but its immunity time ended after {limit} ms; "
                "answer the broker's check instead",
                ResponseCode.ILLEGAL_OPERATION,
            )

    def _open(self, half: StoredMessage) -> list[OpenHalf]:
        entries = self._table.find(half.queue_offset, half)
        if not entries:
            raise RequestRefused(f"the transaction at half offset {half.queue_offset} has ended already")
        return entries
