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
from typing import ClassVar, Final

import attrs

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    Duration,
    NoPermission,
    Property,
    Registry,
    RemotingError,
    RequestCode,
    RequestRefused,
    ResponseCode,
    TopicConfig,
    format_properties,
    parse_properties,
    requests,
    setting,
)
from verniermq.protocol.reply import PushReply

logger = logging.getLogger(__name__)

PUSH_TIME: Final = "PUSH_REPLY_TIME"


@attrs.frozen
class Config:
    """``[plugins.reply]``"""

    store: bool = setting(True, "Whether replies are stored in <cluster>_REPLY_TOPIC too.")
    push_timeout: Duration = setting(Duration(10), "How long the asker may take to confirm a reply.", at_least=0.1)


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Request–reply: pushes an answer to the client that asked.",
        requests=(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
    )
    config: Config
    broker: Context

    def setup(self, registry: Registry) -> None:
        registry.topic(TopicConfig(self._topic, 1, 1))
        registry.handler(RequestCode.SEND_REPLY_MESSAGE, self._reply, requests.SendMessage)
        registry.handler(RequestCode.SEND_REPLY_MESSAGE_V2, self._reply, requests.SendMessage)

    @property
    def _topic(self) -> str:
        """The only one that replies go to: who may send there may answer the clients of this broker."""
        return f"{self.broker.cluster}_REPLY_TOPIC"

    async def _reply(self, request: Command, connection: Connection) -> Command:
        reply = requests.SendMessage.of(request)
        if reply.topic != self._topic:
            raise NoPermission(f"a reply goes to topic {self._topic!r}, not to {reply.topic!r:.140}")
        trouble = await self._push(reply, request.body, connection)
        ext = {"msgId": "0", "queueId": str(reply.queue_id), "queueOffset": "0"}
        if self.config.store:
            ext = await self._store(request, connection) or ext
        return request.reply(ResponseCode.SYSTEM_ERROR if trouble else ResponseCode.SUCCESS, ext, remark=trouble)

    async def _push(self, reply: requests.SendMessage, body: bytes, connection: Connection) -> str:
        """Give the reply to the asker; the answer is what went wrong, or nothing."""
        properties = parse_properties(reply.properties)
        client_id = properties.get(Property.REPLY_TO_CLIENT)
        if client_id is None:
            return f"the reply does not say whom it is for: it lacks the property {Property.REPLY_TO_CLIENT}"
        asker = self.broker.clients.producer(client_id)
        if asker is None:
            return f"client {client_id!r}, whom the reply is for, is not connected to this broker as a producer"
        now = self.broker.clock.now_ms()
        properties[PUSH_TIME] = str(now)
        push = PushReply(
            group=reply.group,
            topic=reply.topic,
            default_topic=reply.default_topic,
            default_queues=reply.default_queues,
            queue_id=reply.queue_id,
            sys_flag=reply.sys_flag,
            born_timestamp=reply.born_timestamp,
            flag=reply.flag,
            properties=format_properties(properties),
            reconsume_times=reply.reconsume_times,
            unit_mode=reply.unit_mode,
            born_host=connection.peer_address,
            store_host=self.broker.address,
            store_timestamp=now,
        ).command()
        push.body = body
        try:
            answer = await asker.connection.request(push, self.config.push_timeout)
        except RemotingError as error:
            logger.warning("reply not delivered client_id=%s reason=%s", client_id, error)
            return f"the reply did not reach client {client_id!r}: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"client {client_id!r} refused the reply: {answer.remark or answer.code}"
        return ""

    async def _store(self, request: Command, connection: Connection) -> dict[str, str] | None:
        """Put the reply into its topic as any other message; that it failed is only logged, as with RocketMQ."""
        try:
            answer = self.broker.send(request, connection)
            if not isinstance(answer, Command):
                answer = await answer
        except RequestRefused as error:
            logger.warning("reply not stored topic=%s reason=%s", self._topic, error)
            return None
        return answer.ext
