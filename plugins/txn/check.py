"""Asking producers about transactions that nobody ended (RocketMQ: ``TransactionalMessageCheckService``).

Every interval each open half message that is old enough is put back at the end of the half queue, with its
count of checks, and one live producer of its group is asked what became of it. The answer is an
END_TRANSACTION of its own. A message that was asked about too often goes to a topic where an operator finds
it; nothing is ever thrown away.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import anyio.lowlevel
import attrs

from verniermq.kernel import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    Appended,
    Connection,
    Context,
    Property,
    StoredMessage,
    TopicConfig,
    encode_record,
)
from verniermq.plugins.txn.half import (
    CHECK_TIMES,
    FIRST_OFFSET,
    immunity_ms,
    real_place,
)
from verniermq.plugins.txn.table import OpenHalf, OpenTable
from verniermq.protocol.transaction import CheckTransactionState

if TYPE_CHECKING:
    from verniermq.plugins.txn import Config

logger = logging.getLogger(__name__)

CARRY_AFTER: Final = 1000
"""A half message that is not to be asked about yet is put back once so many came after it. Without that, one
with an immunity of a day would make every restart read a day of history."""

_ENTRIES_PER_TURN: Final = 64


class Checker:
    def __init__(self, broker: Context, table: OpenTable, config: Config) -> None:
        self._broker = broker
        self._table = table
        self.config = config
        self._nobody_to_ask: Counter[str] = Counter()
        """Producer group → its open transactions that nobody could be asked about in this round."""

    async def run(self) -> None:
        while True:
            await self._broker.clock.sleep(self.config.check_interval)
            await self.check_all()

    async def check_all(self) -> None:
        """One round over everything that is open."""
        self._table.catch_up()
        self._nobody_to_ask.clear()
        for number, entry in enumerate(self._table.oldest_first(), start=1):
            half = self._table.look(entry)
            if half is not None:
                self._check(entry, half)
            if number % _ENTRIES_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()
        for group, count in self._nobody_to_ask.items():
            logger.warning("no live producer to ask about transactions group=%s open=%d", group, count)
        self._table.advance()

    def _check(self, entry: OpenHalf, half: StoredMessage) -> None:
        # Counted on from the first look: whoever sets the clock makes no transaction older.
        age = round((self._broker.clock.monotonic() - entry.born) * 1000)
        if 0 <= age <= immunity_ms(half, round(self.config.timeout * 1000)):
            if self._table.behind(entry) > CARRY_AFTER:
                self._put_back(entry, half)
            return
        if entry.checks >= self.config.check_max or age > self.config.give_up_after * 1000:
            self._give_up(entry, half)
            return
        producer = self._producer(entry, half)
        if producer is None and not self.config.count_without_producer:
            return
        entry.checks += 1
        copy = self._put_back(entry, half)
        if producer is not None:
            self._ask(producer, half, copy)

    def _put_back(self, entry: OpenHalf, half: StoredMessage) -> Appended:
        message = half.pending()
        if entry.checks:
            message.set_property(CHECK_TIMES, str(entry.checks))
        message.properties.setdefault(FIRST_OFFSET, str(half.queue_offset))
        copy = self._broker.store.append(message)
        self._table.move(entry, copy)
        return copy

    # --- asking ----------------------------------------------------------------------------

    def _producer(self, entry: OpenHalf, half: StoredMessage) -> Connection | None:
        """A live producer of the group; another one each time, since one may be alive and yet stuck."""
        group = half.properties.get(Property.PRODUCER_GROUP, "")
        connections = list(self._broker.clients.producers.get(group, {}))
        if not connections:
            self._nobody_to_ask[group] += 1
            return None
        return connections[entry.checks % len(connections)]

    def _ask(self, producer: Connection, half: StoredMessage, copy: Appended) -> None:
        try:
            topic, queue_id = real_place(half)
        except (KeyError, ValueError):
            topic, queue_id = half.topic, half.queue_id
        shown = attrs.evolve(
            half,
            topic=topic,
            queue_id=queue_id,
            queue_offset=copy.queue_offset,
            commit_log_offset=copy.commit_log_offset,
        )
        key = half.unique_key or ""
        check = CheckTransactionState(
            topic=HALF_TOPIC,
            half_offset=copy.queue_offset,
            log_offset=copy.commit_log_offset,
            message_id=key,
            transaction_id=key,
            offset_message_id=copy.message_id,
            broker_name=self._broker.name,
        ).command()
        check.body = encode_record(shown)
        producer.oneway(check)

    # --- giving up -------------------------------------------------------------------------

    def _give_up(self, entry: OpenHalf, half: StoredMessage) -> None:
        self._broker.topics.ensure(TopicConfig(GIVEN_UP_TOPIC, 1, 1))
        message = half.pending(topic=GIVEN_UP_TOPIC, queue_id=0)
        message.drop_property(FIRST_OFFSET)
        moved = self._broker.store.append(message)
        self._table.end([entry])
        logger.error(
            "gave up a transaction that nobody ended group=%s key=%s real_topic=%s checks=%d moved_to=%s id=%s; "
            "verniermq txn resume %s opens it again",
            half.properties.get(Property.PRODUCER_GROUP), half.unique_key, half.properties.get(Property.REAL_TOPIC),
            entry.checks, GIVEN_UP_TOPIC, moved.message_id, moved.message_id,
        )  # fmt: skip
