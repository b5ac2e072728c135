"""A consumer gives a message back: it is tried again later, or is dead (RocketMQ: ``consumerSendMsgBack``).

::

    orders ──failed──> SCHEDULE_TOPIC_XXXX ──10 s──> %RETRY%group ──failed──> … ──16 times──> %DLQ%group

The copy keeps body, properties and birth of the original, counts one more attempt, and remembers where it came from:
``RETRY_TOPIC`` is the first topic, ``ORIGIN_MESSAGE_ID`` the first message id. ``%RETRY%group`` belongs to one group,
so nobody else sees the message again.

A client whose request failed sends the message itself, as an ordinary one, to the retry topic; see
:class:`SendBackGate`.
"""

from __future__ import annotations

import random

import attrs

from verniermq.kernel import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    Command,
    Connection,
    Context,
    GroupConfig,
    NoPermission,
    PendingMessage,
    Perm,
    Property,
    RequestRefused,
    StoredMessage,
    TopicConfig,
    hookspec,
    requests,
)
from verniermq.plugins.retry.backoff import wait_before_retry
from verniermq.plugins.retry.reasons import note_reason
from verniermq.protocol.sendback import ConsumerSendMsgBack

USUAL_TIMES = 16
"""As RocketMQ, for a group of which nobody said anything."""


@hookspec("question")
def group_is_ordered(group: str) -> bool | None:
    """Say whether a consumer group works in order just now: a member of it holds the lock of a queue.

    Silence means no. Asked before a message of the group is tried again. Used by ``order``.
    """


def ensure_retry_topic(broker: Context, group: GroupConfig) -> TopicConfig:
    """``%RETRY%group``, with as many queues as the group wants; its order flag follows what the group subscribes."""
    name = RETRY_PREFIX + group.name
    live = broker.clients.consumers.get(group.name)
    topics = [] if live is None else [broker.topics.find(topic) for topic in live.subscriptions]
    order = any(topic is not None and topic.order for topic in topics)
    return broker.topics.ensure(TopicConfig(name, group.retry_queues, group.retry_queues, order=order))


def bury(broker: Context, message: PendingMessage, group: str, level: str) -> None:
    """Turn a message into a dead letter of the group; they are readable, unlike an older Apache broker's."""
    topic = broker.topics.ensure(TopicConfig(DEAD_LETTER_PREFIX + group, 1, 1, Perm.READ_WRITE))
    message.topic, message.queue_id = topic.name, 0
    message.set_property(Property.DELAY, level)


def most_times(group: GroupConfig, said: int | None) -> int:
    """How often a message comes again: the group's setting decides for all its members, once somebody has changed it.

    As long as it is the usual one, each member may say a number of its own with what it gives back. Java's clients say
    16 even if nobody told them to, so with an Apache broker the group's setting means nothing to them.
    """
    return group.retry_max_times if said is None or group.retry_max_times != USUAL_TIMES else said


@attrs.define(eq=False)
class SendBack:
    """Serves CONSUMER_SEND_MSG_BACK."""

    broker: Context
    reason_limit: int

    async def serve(self, request: Command, connection: Connection) -> Command:
        back = ConsumerSendMsgBack.of(request)
        group = self.broker.groups.for_use(back.group, connection.peer_host)
        if group.retry_queues <= 0:
            return request.reply()  # the group wants no retries: what failed is dropped
        retry_topic = ensure_retry_topic(self.broker, group)
        if not retry_topic.perm & Perm.WRITE:
            raise NoPermission(f"topic {retry_topic.name!r} may not be written (perm {retry_topic.perm})")
        original = self.broker.store.message_at(back.offset)
        if original is None:
            raise RequestRefused(self.broker.store.why_no_message(back.offset))
        message = self._copy(original, back, group, retry_topic)
        appended = await self.broker.put(message)
        if not self.broker.must_confirm({}):
            return request.reply()
        # The consumer goes on past the original as soon as we answer, so the copy has to be safe first.
        code, remark = await self.broker.confirm(appended)
        return request.reply(code, remark=remark)

    def _copy(
        self,
        original: StoredMessage,
        back: ConsumerSendMsgBack,
        group: GroupConfig,
        retry_topic: TopicConfig,
    ) -> PendingMessage:
        times = original.reconsume_times
        queues = max(1, min(group.retry_queues, retry_topic.write_queues))
        message = original.pending(topic=retry_topic.name, queue_id=random.randrange(queues), reconsume_times=times + 1)
        if Property.RETRY_TOPIC not in message.properties:
            message.set_property(Property.RETRY_TOPIC, original.topic)
        if Property.ORIGIN_MESSAGE_ID not in message.properties:
            message.set_property(Property.ORIGIN_MESSAGE_ID, original.offset_message_id)
        note_reason(message, times + 1, back.reason or "", self.reason_limit)
        if back.delay_level < 0 or times >= most_times(group, back.max_reconsume_times):
            bury(self.broker, message, group.name, "0")
        else:
            wait_before_retry(back.delay_level, times, group.retry_policy).put_on(message)
        return message


@attrs.define(eq=False)
class SendBackGate:
    """Looks at ordinary messages to a retry topic: the last resort of clients, and what orderly consumers use.

    A message that was tried too often is dead. So is any of a group that holds a queue lock: an orderly consumer
    sends a message here only when it has given it up, and it must not come back behind its successors.
    """

    broker: Context

    def look(self, message: PendingMessage, peer: str) -> None:
        name = group_of(message.topic)
        group = self.broker.groups.for_use(name, peer)
        send = requests.SendMessage.of_message(message)
        said = None if send is None else send.max_reconsume_times
        if message.reconsume_times > most_times(group, said) or self.broker.hooks.ask(group_is_ordered, name):
            bury(self.broker, message, name, "-1")


def group_of(retry_topic: str) -> str:
    """The group in ``%RETRY%group``, and in ``%RETRY%group+topic`` as pop consumers have it."""
    return retry_topic.removeprefix(RETRY_PREFIX).partition("+")[0]
