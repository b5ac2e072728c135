"""Messages that a consumer could not process: tried again later, and in the end dead letters.

Read in this order: ``sendback`` (the way of a failed message), ``backoff`` (when it comes again), ``reasons`` (why it
failed), ``command`` (``verniermq dlq``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from verniermq.kernel import (
    RETRY_PREFIX,
    Broker,
    Connection,
    Declaration,
    Handler,
    PendingMessage,
    RequestCode,
    concerns,
    hookimpl,
    setting,
)
from verniermq.plugins.retry.sendback import Gate, SendBack, ensure_retry_topic


@attrs.frozen
class Config:
    """``[plugins.retry]``"""

    reason_limit: int = setting(
        500,
        "Characters kept of each failure's reason, as the consumer sent it; 0 keeps none.",
        at_least=0,
        at_most=4000,
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Brings back messages that consumers failed on, and keeps those that failed too often.",
        needs=("schedule",),
        on_failure="closed",
        when_it_keeps_failing="stop",
    )
    config: Config
    _broker: Broker = attrs.field(init=False)
    _gate: Gate = attrs.field(init=False)

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._broker = broker
        self._gate = Gate(broker)

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: SendBack(broker, self.config.reason_limit).serve}

    @hookimpl
    def members_changed(self, group: str) -> None:
        """A consumer subscribes to its group's retry topic from the start, so it has to be there."""
        config = self._broker.groups.find(group)
        if config is not None and config.retry_queues > 0 and group in self._broker.clients.consumers:
            ensure_retry_topic(self._broker, config)

    @hookimpl(tryfirst=True)  # before the delay hides the topic
    @concerns(topic_prefixes=(RETRY_PREFIX,))
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        if connection is not None:
            self._gate.look(message)
