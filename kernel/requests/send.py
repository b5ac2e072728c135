"""The requests that carry a message: sends in both spellings, batches, replies.

The short spelling (V2) has the same fields under one-letter names::

    a producer group   b topic    c template topic   d queues for a new topic   e queue id   f system flag
    g born (ms)        h flag     i properties       j times consumed before    k unit mode  l most times
    m is a batch       n broker name

A request has one spelling, which its code tells; a field in the other one is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self, final

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.message import PendingMessage
from verniermq.kernel.remoting.command import Command, read_integer
from verniermq.kernel.requests.access import PUB, Access, Finder, topic_access
from verniermq.kernel.requests.request import Request

SHORT_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "brokerName": "n",
}
"""Long name → V2 name."""

LONG_NAMES: Final = {short: long for long, short in SHORT_NAMES.items()}

SPELLED_OUT: Final = frozenset({int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE)})
"""The codes whose fields have the long names."""

SMALL: Final = {str(number): number for number in range(256)}
"""Texts of the numbers that the fields of a send nearly always have: looked up in half the time of reading them."""

_LONGEST_NUMBER: Final = 20
_new = object.__new__


@final
class SendMessage(Request):
    """SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and both codes of SEND_REPLY_MESSAGE.

    What a send rarely needs is read when it is asked for; see :func:`read_send` for what it always needs.
    """

    __slots__ = (
        "born_timestamp",
        "flag",
        "properties",
        "queue_id",
        "reconsume_times",
        "short",
        "sys_flag",
        "topic",
    )

    code = RequestCode.SEND_MESSAGE_V2

    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    """As one text."""
    reconsume_times: int
    short: dict[str, str]
    """The fields under their short names, as texts."""

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        queue_id: int,
        born_timestamp: int,
        default_topic: str,
        default_queues: int = 4,
        sys_flag: int = 0,
        flag: int = 0,
        properties: str = "",
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        unit_mode: bool = False,
        batch: bool = False,
        broker_name: str | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.flag = flag
        self.properties = properties
        self.reconsume_times = reconsume_times
        self.short = {
            "a": group,
            "b": topic,
            "c": default_topic,
            "d": str(default_queues),
            "e": str(queue_id),
            "f": str(sys_flag),
            "g": str(born_timestamp),
            "h": str(flag),
            "i": properties,
            "j": str(reconsume_times),
            "k": "true" if unit_mode else "false",
            "m": "true" if batch else "false",
        }
        if max_reconsume_times is not None:
            self.short["l"] = str(max_reconsume_times)
        if broker_name is not None:
            self.short["n"] = broker_name

    def __repr__(self) -> str:
        return f"SendMessage({', '.join(f'{LONG_NAMES[name]}={value!r}' for name, value in self.ext().items())})"

    @classmethod
    def decode(cls, command: Command) -> Self:
        decoded = _new(cls)
        (
            decoded.topic, decoded.queue_id, decoded.sys_flag, decoded.born_timestamp, decoded.flag,
            decoded.reconsume_times, decoded.properties,
        ) = read_send(command)  # fmt: skip
        decoded.short = _short(command)
        return decoded

    @staticmethod
    def of_message(message: PendingMessage) -> SendMessage | None:
        """The request that a message came with; none for the broker's own messages."""
        command = message.request
        return SendMessage.of(command) if isinstance(command, Command) else None

    @staticmethod
    def redirect(command: Command, queue_id: int) -> None:
        """Have a send go to another queue, from now on."""
        command.rewrite({"queueId" if command.code in SPELLED_OUT else SHORT_NAMES["queueId"]: str(queue_id)})

    # --- what is rarely needed -------------------------------------------------------------

    @property
    def group(self) -> str:
        """The producer group."""
        return self.short.get("a", "")

    @property
    def default_topic(self) -> str:
        """The model of a topic that this send creates."""
        return self.short.get("c", "")

    @property
    def default_queues(self) -> int:
        """How many queues a topic shall have that this send creates.

        Raises:
            BadField: it is no number.
        """
        return read_integer("defaultTopicQueueNums", self.short.get("d") or "4")

    @property
    def unit_mode(self) -> bool:
        return self.short.get("k", "").lower() == "true"

    @property
    def max_reconsume_times(self) -> int | None:
        """After how many tries the message is dead; ``None`` if the request does not say, or says no number."""
        given = self.short.get("l", "")
        return int(given) if given.isdecimal() and len(given) < _LONGEST_NUMBER else None

    # --- onto the wire ---------------------------------------------------------------------

    def command(self, code: int | None = None, *, oneway: bool = False) -> Command:
        code = self.code if code is None else code
        return Command.request(code, self.ext(long=code in SPELLED_OUT), oneway=oneway)

    def ext(self, *, long: bool = False) -> dict[str, str]:
        """The fields under their short names, or under the long ones."""
        if not long:
            return {name: value for name, value in self.short.items() if name in LONG_NAMES}
        return {LONG_NAMES[name]: value for name, value in self.short.items() if name in LONG_NAMES}

    def for_queue(self, queue_id: int, broker_name: str) -> dict[str, str]:
        """The fields under their short names, for a queue that is chosen now."""
        return {**self.short, "e": str(queue_id), "i": self.properties, "n": broker_name}

    # --- what it is about ------------------------------------------------------------------

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, PUB)


def producer_of(message: PendingMessage) -> tuple[str, str]:
    """The topic that a message was sent to, whatever plugins have made of it, and its producer group."""
    send = SendMessage.of_message(message)
    return (message.topic, "") if send is None else (send.topic, send.group)


def read_send(command: Command) -> tuple[str, int, int, int, int, int, str]:
    """Topic, queue id, system flag, time of birth, flag, times consumed and properties of a send.

    The same as ``SendMessage.of`` has, for the path that every message takes: it needs no object.

    Raises:
        MissingField, BadField: one of them is missing, or is no number.
    """
    send = command.decoded
    if send is not None:
        assert isinstance(send, SendMessage)
        return (
            send.topic, send.queue_id, send.sys_flag, send.born_timestamp, send.flag, send.reconsume_times,
            send.properties,
        )  # fmt: skip
    ext = command.ext if command.code not in SPELLED_OUT else _short(command)
    try:
        return (
            ext["b"], SMALL[ext["e"]], SMALL[ext["f"]], int(ext["g"]), SMALL[ext["h"]], SMALL[ext.get("j", "0")],
            ext.get("i", ""),
        )  # fmt: skip
    except (KeyError, ValueError):
        return _read_slowly(command)


def _read_slowly(command: Command) -> tuple[str, int, int, int, int, int, str]:
    """Read with the getters that take any number, and say which field is none."""
    names = SHORT_NAMES if command.code not in SPELLED_OUT else {name: name for name in SHORT_NAMES}
    return (
        command.text(names["topic"]),
        command.integer(names["queueId"]),
        command.integer(names["sysFlag"]),
        command.integer(names["bornTimestamp"]),
        command.integer(names["flag"]),
        command.integer(names["reconsumeTimes"], 0),
        command.text(names["properties"], ""),
    )


def _short(command: Command) -> dict[str, str]:
    """The fields of a send under their short names, from its own spelling alone."""
    ext = command.ext
    if command.code in SPELLED_OUT:
        return {short: ext[long] for long, short in SHORT_NAMES.items() if long in ext}
    return ext
