"""Dead letters from outside, over the wire: found, read and sent again. Works on Apache's brokers too.

Reading is pulling ``%DLQ%group`` without committing anything, so nobody's progress changes. Sending again puts a new
message into a topic; the dead letter stays where it is until the log expires. What is sent again says so::

    DLQ_RESENT_FROM=%DLQ%billing  DLQ_RESENT_TIMES=1  DLQ_RESENT_MS=1700000000000
    DLQ_ORIGIN_TOPIC=orders       DLQ_ORIGIN_MESSAGE_ID=7F00000100002A9F0000000000000000
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Container
from types import TracebackType
from typing import Final, Self

import attrs

from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    Clock,
    Command,
    Property,
    RequestCode,
    ResponseCode,
    StoredMessage,
    SysFlag,
    TopicNotFound,
    decode_records,
    format_properties,
)
from verniermq.kernel.requests import GetMaxOffset, GetMinOffset, PullMessage, SendMessage
from verniermq.plugins.retry.backoff import TIMER_PROPERTIES
from verniermq.plugins.retry.reasons import PREFIX as REASON_PREFIX
from verniermq.plugins.retry.reasons import reasons_of
from verniermq.protocol.inflate import InflatesTooFar, inflate
from verniermq.protocol.peers import MASTER, Peers

logger = logging.getLogger(__name__)

READER: Final = "TOOLS_CONSUMER"
"""A group that every Apache broker knows."""
BATCH: Final = 32

OLD_WAYS: Final = frozenset(
    {
        Property.RETRY_TOPIC, Property.DELAY, Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.RECONSUME_TIME,
        Property.MAX_RECONSUME_TIMES, *TIMER_PROPERTIES, "TIMER_DEL_UNIQKEY", Property.POP_CK,
    }
)  # fmt: skip
"""What tells of the way that a message took before; left on, it would be taken for orders."""


@attrs.frozen
class DeadLetter:
    group: str
    broker: str
    """Its address."""
    message: StoredMessage

    @property
    def origin_topic(self) -> str:
        """Where it was first sent to."""
        return self.message.properties.get(Property.RETRY_TOPIC, "")

    @property
    def reasons(self) -> dict[int, str]:
        return reasons_of(self.message.properties)

    @property
    def names(self) -> set[str]:
        """Everything that somebody may know it by: its keys, its unique key, its own and its first message id."""
        message = self.message
        origin = message.properties.get(Property.ORIGIN_MESSAGE_ID, "")
        return {*message.keys, message.unique_key or "", message.offset_message_id, origin} - {""}

    @property
    def body(self) -> bytes:
        """As the producer had it; as it is stored if it cannot be inflated, or only to something huge."""
        message = self.message
        kind = message.sys_flag & SysFlag.COMPRESSION_MASK
        if message.sys_flag & SysFlag.COMPRESSED and kind in (0, SysFlag.COMPRESSION_ZLIB):
            try:
                return inflate(message.body)
            except (ValueError, InflatesTooFar):
                return message.body
        return message.body


class Pace:
    """Lets one thing happen at a time, and no more than ``rate`` of them in a second; a pause is not made up for."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._step = 1 / rate
        self._clock = clock
        self._next = 0.0

    async def turn(self) -> None:
        """Wait for the next one's turn."""
        await self._clock.sleep(self._next - self._clock.monotonic())
        self._next = self._clock.monotonic() + self._step


class DeadLetters:
    """All dead letters that a name server leads to."""

    def __init__(self, namesrv: str) -> None:
        self._peers = Peers(namesrv)
        self._routes: dict[str, dict[str, list[int]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._peers.__aexit__(kind, error, trace)

    async def groups(self) -> list[str]:
        """The groups that have dead letters."""
        request = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        topics = (await self._peers.ask_name_server(request)).get("topicList") or []
        return sorted(t.removeprefix(DEAD_LETTER_PREFIX) for t in topics if t.startswith(DEAD_LETTER_PREFIX))

    async def count(self, group: str) -> int:
        total = 0
        topic = DEAD_LETTER_PREFIX + group
        for broker, queues in (await self._route(topic)).items():
            for queue in queues:
                low, high = await self._bounds(broker, topic, queue)
                total += high - low
        return total

    async def read(self, group: str) -> AsyncIterator[DeadLetter]:
        """Every dead letter of a group, oldest first on each broker, up to those that are there now."""
        topic = DEAD_LETTER_PREFIX + group
        for broker, queues in (await self._route(topic)).items():
            for queue in queues:
                offset, end = await self._bounds(broker, topic, queue)
                while offset < end:
                    pull = PullMessage(
                        group=READER, topic=topic, queue_id=queue, offset=offset, max_messages=BATCH,
                        sys_flag=PullMessage.SUBSCRIPTION_INCLUDED, expression="*",
                    )  # fmt: skip
                    answer = await self._ask(broker, pull.command(), {ResponseCode.PULL_RETRY_IMMEDIATELY})
                    for message in decode_records(answer.body):
                        if not message.is_body_intact:
                            logger.error("a dead letter is damaged; it is left out id=%s", message.offset_message_id)
                        elif message.queue_offset < end:
                            yield DeadLetter(group, broker, message)
                    offset = int(answer.ext["nextBeginOffset"])

    async def resend(self, letter: DeadLetter, topic: str = "") -> str:
        """Send a dead letter to a topic, by default to the one it came from; return the new message's id.

        Raises:
            TopicNotFound: there is no such topic (any more).
        """
        target = topic or letter.origin_topic
        if not target:
            raise TopicNotFound("", f"dead letter {letter.message.offset_message_id} does not say where it came from")
        brokers = await self._route(target)
        if not brokers:
            raise TopicNotFound(target, "name another one to send to")
        # Where it lies is where its topic was; another broker will do if that has changed.
        broker = letter.broker if letter.broker in brokers else next(iter(brokers))
        command = self._send(letter, target).command()
        command.body = letter.message.body
        return (await self._ask(broker, command)).ext["msgId"]

    def _send(self, letter: DeadLetter, topic: str) -> SendMessage:
        message = letter.message
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in OLD_WAYS and not name.startswith(REASON_PREFIX)
        }
        if topic.startswith(RETRY_PREFIX):
            properties[Property.RETRY_TOPIC] = letter.origin_topic
        before = properties.get("DLQ_RESENT_TIMES", "0")
        properties.update(
            DLQ_RESENT_FROM=DEAD_LETTER_PREFIX + letter.group,
            DLQ_RESENT_TIMES=str(int(before) + 1 if before.isdecimal() else 1),
            DLQ_RESENT_MS=str(time.time_ns() // 1_000_000),
            DLQ_ORIGIN_TOPIC=letter.origin_topic,
            DLQ_ORIGIN_MESSAGE_ID=properties.get(Property.ORIGIN_MESSAGE_ID, ""),
        )
        return SendMessage(
            group=READER, topic=topic, queue_id=-1, born_timestamp=message.born_timestamp,
            default_topic=AUTO_CREATE_TOPIC, flag=message.flag,
            sys_flag=message.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK),
            properties=format_properties({k: v for k, v in properties.items() if v}),
        )  # fmt: skip

    # --- the wire --------------------------------------------------------------------------

    async def _bounds(self, broker: str, topic: str, queue: int) -> tuple[int, int]:
        low, high = [
            int((await self._ask(broker, kind(topic=topic, queue_id=queue).command())).ext["offset"])
            for kind in (GetMinOffset, GetMaxOffset)
        ]
        return low, high

    async def _route(self, topic: str) -> dict[str, list[int]]:
        """Address of each master that has the topic → its queues."""
        if topic not in self._routes:
            self._routes[topic] = await self._find_route(topic)
        return self._routes[topic]

    async def _find_route(self, topic: str) -> dict[str, list[int]]:
        try:
            route = await self._peers.route(topic)
        except TopicNotFound:
            return {}
        masters = {data["brokerName"]: data["brokerAddrs"].get(MASTER) for data in route["brokerDatas"]}
        return {
            masters[data["brokerName"]]: list(range(data["readQueueNums"]))
            for data in route["queueDatas"]
            if masters.get(data["brokerName"])
        }

    async def _ask(self, address: str, command: Command, fine: Container[int] = ()) -> Command:
        """
        Raises:
            UnexpectedAnswer: the answer is neither success nor one of ``fine``.
            PeerUnreachable, ConnectionLost, RequestTimeout: there is none.
        """
        return await self._peers.ask(address, command, fine)
