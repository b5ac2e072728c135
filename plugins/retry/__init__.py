"""Messages that a consumer could not process: tried again later, and in the end dead letters.

Read in this order: ``sendback`` (the way of a failed message), ``backoff`` (when it comes again), ``reasons`` (why it
failed), ``command`` (``verniermq dlq``).
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from verniermq.kernel import (
    RETRY_PREFIX,
    Connection,
    Context,
    Declaration,
    PendingMessage,
    Registry,
    RequestCode,
    concerns,
    hookimpl,
    setting,
)
from verniermq.plugins.retry.sendback import SendBack, SendBackGate, ensure_retry_topic, group_is_ordered
from verniermq.protocol.sendback import ConsumerSendMsgBack


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
        requests=(RequestCode.CONSUMER_SEND_MSG_BACK,),
        hookspecs=(group_is_ordered,),
        on_failure="closed",
        when_it_keeps_failing="stop",
    )
    config: Config
    broker: Context

    def setup(self, registry: Registry) -> None:
        sendback = SendBack(self.broker, self.config.reason_limit)
        registry.handler(RequestCode.CONSUMER_SEND_MSG_BACK, sendback.serve, ConsumerSendMsgBack)

    @hookimpl
    def members_changed(self, group: str) -> None:
        """A consumer subscribes to its group's retry topic from the start, so it has to be there."""
        config = self.broker.groups.find(group)
        if config is not None and config.retry_queues > 0 and group in self.broker.clients.consumers:
            ensure_retry_topic(self.broker, config)

    @hookimpl(tryfirst=True)  # before the delay hides the topic
    @concerns(topic_prefixes=(RETRY_PREFIX,))
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        if connection is not None:
            SendBackGate(self.broker).look(message, connection.peer_host)
