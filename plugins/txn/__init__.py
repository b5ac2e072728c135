"""Transactions: a message is seen only after its producer said "commit" (RocketMQ: ``TransactionalMessageService``).

::

    producer ── TRAN_MSG=true ──> half.py      stored where nobody sees it
    producer ── END_TRANSACTION ─> ending.py   commit: put into its real topic; rollback: noted as done
    nobody   ── for too long ────> checking.py asks a live producer of the group, then again, then gives up
                                   table.py    what is open, in memory and found again after a crash
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import attrs

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Declaration,
    Duration,
    Handler,
    PendingMessage,
    Property,
    RequestCode,
    RequestRefused,
    Service,
    TopicConfig,
    concerns,
    hookimpl,
    parse_offset_message_id,
    setting,
)
from verniermq.plugins.txn.checking import Checker
from verniermq.plugins.txn.ending import EndHandler
from verniermq.plugins.txn.half import (
    CHECK_TIMES,
    GIVEN_UP_TOPIC,
    HALF_QUEUE,
    HALF_TOPIC,
    OPERATION_TOPIC,
    is_transactional,
    make_half,
)
from verniermq.plugins.txn.table import OpenTable

__all__ = ["Config", "Plugin"]


@attrs.frozen
class Config:
    """``[plugins.txn]``"""

    timeout: Duration = setting(Duration(6), "How old an open transaction must be before its producer is asked.")
    check_interval: Duration = setting(Duration(30), "How often open transactions are looked at.", at_least=0.1)
    check_max: int = setting(15, "After so many checks it is moved to TRANS_CHECK_MAX_TIME_TOPIC.", at_least=1)
    give_up_after: Duration = setting(Duration(72 * 3600), "A transaction older than this is moved there too.")
    count_without_producer: bool = setting(True, "Whether a check counts though no producer was there to ask.")


@attrs.define(eq=False)
class Plugin:
    # Closed: a half message that we failed to hide would be delivered before its commit.
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Transactions: half messages, commit, rollback, and asking producers back.",
        before=("schedule",),
        on_failure="closed",
    )
    config: Config
    _broker: Broker = attrs.field(init=False)
    _table: OpenTable = attrs.field(init=False)
    _checker: Checker = attrs.field(init=False)

    # --- start and stop --------------------------------------------------------------------

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._broker = broker
        self._table = OpenTable(broker)
        self._checker = Checker(broker, self._table, self.config)

    @hookimpl
    def system_topics(self) -> Iterable[TopicConfig]:
        return [TopicConfig(HALF_TOPIC, 1, 1), TopicConfig(OPERATION_TOPIC, 1, 1)]

    @hookimpl
    def request_handlers(self) -> Mapping[int, Handler]:
        self._table.rebuild()
        ending = EndHandler(self._broker, self._table, lambda: round(self.config.timeout * 1000))
        return {
            RequestCode.END_TRANSACTION: ending.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._resume,
        }

    @hookimpl
    def services(self) -> Iterable[Service]:
        return [Service("transaction checks", self._checker.run)]

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.config = self._checker.config = settings

    @hookimpl
    def broker_stopping(self) -> None:
        self._table.catch_up()
        self._table.advance()

    @hookimpl
    def runtime_info(self) -> Mapping[str, str]:
        return {"openTransactions": str(len(self._table))}

    # --- messages and requests -------------------------------------------------------------

    @hookimpl
    @concerns(properties=(Property.TRANSACTION_PREPARED,))
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        # What the broker itself puts (a commit, a retry of a committed message) carries the property too.
        if connection is not None and is_transactional(message):
            make_half(message)

    def _resume(self, request: Command, connection: Connection) -> Command:
        """RESUME_CHECK_HALF_MESSAGE: an operator opens a transaction again that was given up."""
        message_id = request.text("msgId")
        try:
            _, offset = parse_offset_message_id(message_id)
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        given_up = self._broker.store.message_at(offset)
        if given_up is None or given_up.topic != GIVEN_UP_TOPIC:
            raise RequestRefused(f"there is no message of {GIVEN_UP_TOPIC} with the id {message_id!r}")
        message = given_up.pending(topic=HALF_TOPIC, queue_id=HALF_QUEUE)
        message.set_property(CHECK_TIMES, "0")
        self._broker.store.append(message)
        return request.reply()
