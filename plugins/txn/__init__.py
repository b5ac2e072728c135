"""Transactions: a message is seen only after its producer said "commit" (RocketMQ: ``TransactionalMessageService``).

::

    producer ── TRAN_MSG=true ──> half.py      stored where nobody sees it
    producer ── END_TRANSACTION ─> end.py      commit: put into its real topic; rollback: noted as done
    nobody   ── for too long ────> check.py    asks a live producer of the group, then again, then gives up
                                   table.py    what is open, in memory and found again after a crash
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import attrs

from verniermq.kernel import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OPERATION_TOPIC,
    Command,
    Connection,
    Context,
    Declaration,
    Duration,
    NoPermission,
    PendingMessage,
    Property,
    Registry,
    RequestCode,
    RequestRefused,
    Sample,
    TopicConfig,
    concerns,
    hookimpl,
    parse_offset_message_id,
    setting,
)
from verniermq.plugins.txn.check import Checker
from verniermq.plugins.txn.end import EndHandler
from verniermq.plugins.txn.half import (
    CHECK_TIMES,
    HALF_QUEUE,
    is_transactional,
    make_half,
)
from verniermq.plugins.txn.table import OpenTable
from verniermq.protocol.transaction import EndTransaction, ResumeCheck

__all__ = ["Config", "Plugin"]


@attrs.frozen
class Config:
    """``[plugins.txn]``"""

    reject: bool = setting(False, "Whether transactional messages are refused.")
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
        requests=(RequestCode.END_TRANSACTION, RequestCode.RESUME_CHECK_HALF_MESSAGE),
        properties=(Property.TRANSACTION_PREPARED,),
        on_failure="closed",
    )
    config: Config
    broker: Context
    _table: OpenTable = attrs.field(init=False)
    _checker: Checker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._table = OpenTable(self.broker)
        self._checker = Checker(self.broker, self._table, self.config)

    # --- start and stop --------------------------------------------------------------------

    def setup(self, registry: Registry) -> None:
        registry.topic(TopicConfig(HALF_TOPIC, 1, 1), closed=True)
        registry.topic(TopicConfig(OPERATION_TOPIC, 1, 1), closed=True)
        registry.close_topic(GIVEN_UP_TOPIC)
        ending = EndHandler(self.broker, self._table, lambda: round(self.config.timeout * 1000))
        registry.handler(RequestCode.END_TRANSACTION, ending.end, EndTransaction)
        registry.handler(RequestCode.RESUME_CHECK_HALF_MESSAGE, self._resume, ResumeCheck)
        self._offer(registry, ending)
        registry.service("transaction checks", self._checker.run, master_only=True)

    def _offer(self, registry: Registry, ending: EndHandler) -> None:
        """By Apache's names."""
        registry.metric(
            "rocketmq_half_messages", "gauge", "Open transactions.", lambda: _counted(self._table.topics()), ("topic",)
        )
        registry.metric(
            "rocketmq_commit_messages_total", "counter", "Transactions that were committed.",
            lambda: _counted(ending.committed), ("topic",),
        )  # fmt: skip
        registry.metric(
            "rocketmq_rollback_messages_total", "counter", "Transactions that were rolled back.",
            lambda: _counted(ending.rolled_back), ("topic",),
        )  # fmt: skip
        registry.metric(
            "rocketmq_finish_message_latency_milliseconds", "histogram",
            "Seconds, though the name says milliseconds, as at Apache: from a message's birth to its commit.",
            lambda: [((topic,), histogram) for topic, histogram in ending.ages.items()], ("topic",),
        )  # fmt: skip

    @hookimpl
    def store_opened(self) -> None:
        self._table.rebuild()

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.config = self._checker.config = settings

    @hookimpl
    def broker_stopping(self) -> None:
        self._table.catch_up()
        self._table.advance()

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        return {"openTransactions": str(len(self._table))}

    # --- messages and requests -------------------------------------------------------------

    @hookimpl
    @concerns(properties=(Property.TRANSACTION_PREPARED,))
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        # What the broker itself puts (a commit, a retry of a committed message) carries the property too.
        if connection is not None and is_transactional(message):
            if self.config.reject:
                raise NoPermission(
                    "this broker takes no transactional messages; set reject = false in [plugins.txn] to allow them"
                )
            make_half(message)

    def _resume(self, request: Command, connection: Connection) -> Command:
        message_id = ResumeCheck.of(request).message_id
        try:
            _, offset = parse_offset_message_id(message_id)
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        given_up = self.broker.store.message_at(offset)
        if given_up is None or given_up.topic != GIVEN_UP_TOPIC:
            raise RequestRefused(f"there is no message of {GIVEN_UP_TOPIC} with the id {message_id!r}")
        message = given_up.pending(topic=HALF_TOPIC, queue_id=HALF_QUEUE)
        message.set_property(CHECK_TIMES, "0")
        self.broker.store.append(message)
        return request.reply()


def _counted(topics: Iterable[str] | Mapping[str, int]) -> list[Sample]:
    return [((topic,), count) for topic, count in Counter(topics).items()]
