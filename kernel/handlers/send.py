"""SEND_MESSAGE, its short and its batch form: decode, ask plugins, append, answer (RocketMQ: ``SendMessageProcessor``).

What a topic needs is worked out at its first message and kept, so that a message costs one look-up.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final

from anyio.lowlevel import checkpoint

from verniermq.kernel import hookspecs
from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.errors import MessageIllegal, MessageSizeExceeded, QueueOutOfRange
from verniermq.kernel.handlers.plainbatch import MOST_MESSAGES, Columns, PlainTexts, split
from verniermq.kernel.handlers.sendanswer import REGION, batch_fields, send_answer
from verniermq.kernel.handlers.table import HandlerTable
from verniermq.kernel.loop import in_steps
from verniermq.kernel.maybe import Withheld, in_turn, then
from verniermq.kernel.message import LONGEST_TAG, VALUE_END, PendingMessage, SysFlag, parse_properties
from verniermq.kernel.names import RETRY_PREFIX, Property
from verniermq.kernel.remoting import Command, Connection
from verniermq.kernel.requests import SendMessage
from verniermq.kernel.requests.send import read_send

if TYPE_CHECKING:
    from verniermq.kernel.handlers.parts import BrokerParts

Sent: TypeAlias = Command | Withheld[Any] | Coroutine[Any, Any, Command]
"""The answer to a send, or what it comes from."""

MESSAGES_PER_STEP: Final = 256
"""Messages of a batch that are read, or that plugins see, before others have a turn."""
_BATCH_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")


@final
class SendTarget:
    """What the path of a message needs to know of its topic.

    Attributes:
        concerned: Some plugin wants to see every message to this topic, or it is not on the disk yet.
    """

    __slots__ = ("concerned", "queues", "write_queues")

    def __init__(self, queues: int, write_queues: int, concerned: bool) -> None:
        self.queues = queues
        self.write_queues = write_queues
        self.concerned = concerned


class PlainTopics(Protocol):
    """The compiled way of plain sends, which has to know where they may go."""

    def learn(self, topic: str, queues: int) -> None:
        """Messages to this topic concern no plugin."""

    def forget(self, topic: str) -> None: ...


class SendHandler:
    """
    Attributes:
        lane: The compiled way of plain sends, if there is one.
        added_text: The properties that each message gets, as text.
    """

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker
        self._store = broker.store
        self._appender = broker.store.appender
        self._host = broker.host
        self._synchronous = broker.store.waits_for_disk
        self._appended = broker.host.calls(hookspecs.messages_appended)
        self._confirming = broker.host.calls(hookspecs.confirm_append)
        self._acknowledgements = broker.acknowledgements
        self._targets: dict[str, SendTarget] = {}
        self._plain_texts = PlainTexts(lambda: self._host.concerned_properties)
        self._most_in_run = min(MOST_MESSAGES, broker.store.settings.max_batch)
        self._added = {
            Property.REGION: REGION,
            Property.TRACE_SWITCH: "true",
            Property.CLUSTER: broker.configuration.broker.cluster,
        }
        self.added_text = "".join(f"{name}\x01{value}\x02" for name, value in self._added.items())
        self.lane: PlainTopics | None = None

    def register(self, table: HandlerTable) -> None:
        table.serve(RequestCode.SEND_MESSAGE, SendMessage, self.send)
        table.serve(RequestCode.SEND_MESSAGE_V2, SendMessage, self.send)
        table.serve(RequestCode.SEND_BATCH_MESSAGE, SendMessage, self.send_batch)

    def forget_targets(self, topics: Iterable[str]) -> None:
        """These topics changed; look at them anew."""
        for topic in topics:
            self._targets.pop(topic, None)
            if self.lane is not None:
                self.lane.forget(topic)

    def send(self, request: Command, connection: Connection) -> Sent:
        message, target = self._decode(request, connection)
        self._stamp(message)
        queue_id = message.queue_id
        if target.concerned or not self._host.concerned_properties.isdisjoint(message.properties):
            waiting = self._broker.before_append(message, connection)
            return then(waiting, lambda: self._append(request, connection, message, queue_id))
        return self._append(request, connection, message, queue_id)

    def _decode(self, request: Command, connection: Connection) -> tuple[PendingMessage, SendTarget]:
        topic, queue_id, sys_flag, born, flag, times, text = read_send(request)
        target = self._targets.get(topic) or self._target(SendMessage.of(request), connection)
        if queue_id < 0:
            queue_id = random.randrange(max(1, target.write_queues))
        elif queue_id >= target.queues:
            raise QueueOutOfRange(topic, queue_id, target.queues)
        properties = parse_properties(text)
        if len(text) > LONGEST_TAG:
            _check_tag(properties)
        if sys_flag & SysFlag.TRANSACTION_MASK:
            _check_transaction(sys_flag, properties)
        message = PendingMessage(
            topic, queue_id, request.body, properties, text, flag, sys_flag, born, connection.packed_host, times,
            0, request,
        )  # fmt: skip
        return message, target

    def _stamp(self, message: PendingMessage) -> None:
        """Add what the broker adds. The text is extended rather than made anew, where nothing is in the way."""
        properties, text = message.properties, message.properties_text or ""
        clean = Property.REGION not in properties
        if Property.UNIQUE_KEY not in properties:
            properties[Property.UNIQUE_KEY] = unique_key()
            clean = False
        properties.update(self._added)
        if not clean:
            message.properties_text = None
        elif not text or text[-1] == VALUE_END:
            message.properties_text = text + self.added_text
        else:
            message.properties_text = text + VALUE_END + self.added_text

    def _target(self, send: SendMessage, connection: Connection) -> SendTarget:
        topic = send.topic
        config = self._broker.topics.for_send(topic, send.default_topic, send.default_queues, connection.peer_host)
        if not self._broker.is_saved(topic):
            # Not kept: it takes the way of those that plugins want to see, on which it waits until the disk has it.
            return SendTarget(config.queues, config.write_queues, concerned=True)
        target = SendTarget(config.queues, config.write_queues, self._host.topic_is_concerned(topic))
        self._targets[topic] = target
        if self.lane is not None and not target.concerned and topic not in self._store.tags_coders:
            self.lane.learn(topic, target.queues)
        return target

    def _append(self, request: Command, connection: Connection, message: PendingMessage, queue_id: int) -> Sent:
        appended = self._appender.append(message)
        if self._appended:
            self._broker.note_appended(message, appended)
        answer = send_answer(
            request, appended.message_id, queue_id, appended.queue_offset, message.properties[Property.UNIQUE_KEY]
        )
        if message.answer_fields:
            answer.ext.update(message.answer_fields)
            answer.frame = b""
        if (self._synchronous or self._confirming) and message.properties.get(Property.WAIT) != "false":
            return self._acknowledgements.hold(request, answer, appended, connection)
        return answer

    # --- batches ---------------------------------------------------------------------------

    def send_batch(self, request: Command, connection: Connection) -> Sent:
        head, target = self._decode(request, connection)
        if head.topic.startswith(RETRY_PREFIX):
            raise MessageIllegal(f"a batch may not go to a retry topic ({head.topic!r}); send the messages one by one")
        if head.sys_flag & SysFlag.TRANSACTION_MASK:
            raise MessageIllegal("a batch may not be a transaction; send the messages one by one")
        if len(head.body) > self._store.settings.max_message_size:
            raise MessageSizeExceeded(len(head.body), self._store.settings.max_message_size)
        if not target.concerned and not self._appended and head.topic not in self._store.tags_coders:
            columns = split(bytes(head.body), self._plain_texts, self._most_in_run)
            if columns is not None:
                return self._append_run(request, connection, head, columns)
        reading = self._split(head)
        messages = list(islice(reading, MESSAGES_PER_STEP))
        if len(messages) == MESSAGES_PER_STEP:
            return self._send_large_batch(reading, request, connection, target, head, messages)
        if self._is_concerned(target, messages):
            waiting = in_turn(step for message in messages for step in self._host.before_append(message, connection))
            saved = then(waiting, lambda: self._broker.saving_topic(head, connection))
            return then(saved, lambda: self._append_together(request, connection, head, messages))
        return self._append_batch(request, connection, head, messages)

    def _is_concerned(self, target: SendTarget, messages: Iterable[PendingMessage]) -> bool:
        """Whether some plugin wants to see messages of a batch."""
        concerned = self._host.concerned_properties
        return target.concerned or any(not concerned.isdisjoint(message.properties) for message in messages)

    async def _send_large_batch(
        self,
        reading: Iterator[PendingMessage],
        request: Command,
        connection: Connection,
        target: SendTarget,
        head: PendingMessage,
        messages: list[PendingMessage],
    ) -> Command:
        """The same in steps. Only the append cannot be divided: the messages of a batch lie side by side."""
        await checkpoint()
        messages += [message async for message in in_steps(reading, MESSAGES_PER_STEP)]
        await checkpoint()
        if self._is_concerned(target, messages):
            async for message in in_steps(messages, MESSAGES_PER_STEP):
                for waiting in self._host.before_append(message, connection):
                    if waiting is not None:
                        await waiting
            if (saved := self._broker.saving_topic(head, connection)) is not None:
                await saved
            self._check_together(head, messages)
        answer = self._append_batch(request, connection, head, messages)
        return answer if isinstance(answer, Command) else await answer

    def _append_together(
        self, request: Command, connection: Connection, head: PendingMessage, messages: list[PendingMessage]
    ) -> Sent:
        self._check_together(head, messages)
        return self._append_batch(request, connection, head, messages)

    def _check_together(self, head: PendingMessage, messages: list[PendingMessage]) -> None:
        """A batch has one answer for all, with one queue and one offset: nobody may move a message out of it."""
        for number, message in enumerate(messages):
            if message.topic != head.topic or message.queue_id != head.queue_id:
                names = ", ".join(sorted(self._host.concerned_properties & message.properties.keys()))
                raise MessageIllegal(
                    f"message {number} of the batch would go to topic {message.topic!r}"
                    f"{f' because of its property {names}' if names else ''}, away from the others; send it alone"
                )

    def _append_batch(
        self, request: Command, connection: Connection, head: PendingMessage, messages: list[PendingMessage]
    ) -> Sent:
        appended = self._appender.append_batch(messages)
        if self._appended:
            for message, one in zip(messages, appended, strict=True):
                self._broker.note_appended(message, one)
        message_ids = ",".join([one.message_id for one in appended])
        answer = request.reply(ResponseCode.SUCCESS, batch_fields(message_ids, head.queue_id, appended[0].queue_offset))
        if not self._acknowledgements.are_wanted(head.properties):
            return answer
        return self._acknowledgements.hold(request, answer, appended[-1], connection)

    def _append_run(self, request: Command, connection: Connection, head: PendingMessage, columns: Columns) -> Sent:
        """The same as :meth:`_append_batch` for a plain one."""
        run = self._appender.append_run(
            head.topic, head.queue_id, columns, sys_flag=head.sys_flag, born_timestamp=head.born_timestamp,
            born_host=head.born_host, reconsume_times=head.reconsume_times,
        )  # fmt: skip
        answer = request.reply(ResponseCode.SUCCESS, batch_fields(run.message_ids, head.queue_id, run.queue_offset))
        if not self._acknowledgements.are_wanted(head.properties):
            return answer
        return self._acknowledgements.hold(request, answer, run.event(len(run) - 1), connection)

    def _split(self, head: PendingMessage) -> Iterator[PendingMessage]:
        """The messages of a batch: ``size, 0, 0, flag, body length, body, properties length, properties`` each."""
        data = bytes(head.body)
        number, most = 0, self._store.settings.max_batch
        position, stop = 0, len(data)
        while position < stop:
            try:
                size, _, _, flag, body_size = _BATCH_HEAD.unpack_from(data, position)
                body_end = position + 20 + body_size
                (properties_size,) = _SHORT.unpack_from(data, body_end)
                end = body_end + 2 + properties_size
                if body_size < 0 or properties_size < 0 or end != position + size or end > stop:
                    raise ValueError(f"sizes do not add up ({size} ≠ 22 + {body_size} + {properties_size})")
                text = data[body_end + 2 : end].decode()
            except (struct.error, ValueError) as error:
                raise MessageIllegal(f"message {number} of the batch, at byte {position}: {error}") from error
            properties = parse_properties(text)
            if len(text) > LONGEST_TAG:
                _check_tag(properties)
            message = PendingMessage(
                head.topic, head.queue_id, data[position + 20 : body_end], properties, text, flag,
                head.sys_flag, head.born_timestamp, head.born_host, head.reconsume_times,
                request=head.request,
            )  # fmt: skip
            if Property.UNIQUE_KEY not in properties:
                message.set_property(Property.UNIQUE_KEY, unique_key())
            number += 1
            if number > most:
                raise MessageIllegal(
                    f"a batch of more than {most} messages; send it in parts, or raise max_batch in [store]"
                )
            yield message
            position = end
        if not number:
            raise MessageIllegal("a batch without a message")


def _check_tag(properties: Mapping[str, str]) -> None:
    length = len(properties.get(Property.TAGS, ""))
    if length > LONGEST_TAG:
        raise MessageIllegal(
            f"the tag has {length} characters, and {LONGEST_TAG} at most are taken; shorten it, or use a property"
        )


def _check_transaction(sys_flag: int, properties: Mapping[str, str]) -> None:
    """With the flag alone a message would be stored, acknowledged, and never delivered to anybody."""
    name = Property.TRANSACTION_PREPARED
    if properties.get(name, "").lower() != "true":
        raise MessageIllegal(f"sysFlag {sys_flag} says that it is a transaction, but property {name} is not 'true'")


def unique_key() -> str:
    """A client message id for a producer that sent none; 32 hex digits, as the clients' own."""
    return os.urandom(16).hex().upper()
