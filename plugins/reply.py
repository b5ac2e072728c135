"""Request–reply: an answer finds its way to the very client that asked (RocketMQ: ``ReplyMessageProcessor``).

::

    asker    ── message with CORRELATION_ID, REPLY_TO_CLIENT ──> broker ──> answerer       (an ordinary message)
    answerer ── SEND_REPLY_MESSAGE to <cluster>_REPLY_TOPIC ───> broker
                       broker ── PUSH_REPLY_MESSAGE_TO_CLIENT ─> asker                     (this plugin)
    answerer <──────────────── its outcome ───────────────────── broker

The asker is known by its client id, which its heartbeat as a producer brought. The reply is also stored, so
that one can see afterwards what was answered; nobody consumes it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

import attrs

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Declaration,
    Duration,
    Handler,
    Property,
    RemotingError,
    RequestCode,
    RequestRefused,
    ResponseCode,
    TopicConfig,
    format_properties,
    hookimpl,
    parse_properties,
    setting,
)

logger = logging.getLogger(__name__)

PUSH_TIME: Final = "PUSH_REPLY_TIME"

LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
}
"""What travels on to the asker, under the long names whichever the answerer used."""


@attrs.frozen
class Config:
    """``[plugins.reply]``"""

    store: bool = setting(True, "Whether replies are stored in <cluster>_REPLY_TOPIC too.")
    push_timeout: Duration = setting(Duration(10), "How long the asker may take to confirm a reply.", at_least=0.1)


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Request–reply: pushes an answer to the client that asked."
    )
    config: Config
    _broker: Broker = attrs.field(init=False)

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._broker = broker

    @hookimpl
    def system_topics(self, broker: Broker) -> Iterable[TopicConfig]:
        return [TopicConfig(f"{broker.configuration.broker.cluster}_REPLY_TOPIC", 1, 1)]

    @hookimpl
    def request_handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self._reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._reply,
        }

    async def _reply(self, request: Command, connection: Connection) -> Command:
        is_short = request.code == RequestCode.SEND_REPLY_MESSAGE_V2
        short_to_long = LONG_NAMES if is_short else {name: name for name in LONG_NAMES.values()}
        fields = {long: request.ext[name] for name, long in short_to_long.items() if name in request.ext}
        topic = request.text("b" if is_short else "topic")
        self._broker.topics.for_send(topic, fields.get("defaultTopic", ""), 1)
        trouble = await self._push(fields, request, connection)
        ext = {"msgId": "0", "queueId": fields.get("queueId", "0"), "queueOffset": "0"}
        if self.config.store:
            ext = await self._store(request, connection, is_short) or ext
        return request.reply(ResponseCode.SYSTEM_ERROR if trouble else ResponseCode.SUCCESS, ext, remark=trouble)

    async def _push(self, fields: Mapping[str, str], request: Command, connection: Connection) -> str:
        """Give the reply to the asker; the answer is what went wrong, or nothing."""
        properties = parse_properties(fields.get("properties", ""))
        client_id = properties.get(Property.REPLY_TO_CLIENT)
        if client_id is None:
            return f"the reply does not say whom it is for: it lacks the property {Property.REPLY_TO_CLIENT}"
        asker = self._broker.clients.producer(client_id)
        if asker is None:
            return f"client {client_id!r}, whom the reply is for, is not connected to this broker as a producer"
        now = str(self._broker.clock.now_ms())
        properties[PUSH_TIME] = now
        ext = {
            **fields,
            "properties": format_properties(properties),
            "bornHost": connection.peer_address,
            "storeHost": self._broker.address,
            "storeTimestamp": now,
        }
        push = Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, request.body)
        try:
            answer = await asker.connection.request(push, self.config.push_timeout)
        except RemotingError as error:
            logger.warning("reply not delivered client_id=%s reason=%s", client_id, error)
            return f"the reply did not reach client {client_id!r}: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"client {client_id!r} refused the reply: {answer.remark or answer.code}"
        return ""

    async def _store(self, request: Command, connection: Connection, is_short: bool) -> dict[str, str] | None:
        """Put the reply into its topic as any other message; that it failed is only logged, as with RocketMQ."""
        send = self._broker.handlers[RequestCode.SEND_MESSAGE_V2 if is_short else RequestCode.SEND_MESSAGE]
        try:
            answer = send(request, connection)
            if answer is not None and not isinstance(answer, Command):
                answer = await answer
        except RequestRefused as error:
            logger.warning("reply not stored topic=%s reason=%s", request.ext.get("b"), error)
            return None
        return None if answer is None else answer.ext
