"""A message of a transaction in its two forms: half, where nobody sees it, and real.

The half form goes to a topic of the broker's own and keeps where it was meant to go in its properties::

    sent       topic orders, queue 3, system flag 0x4 (prepared)
    half       topic RMQ_SYS_TRANS_HALF_TOPIC, queue 0, flag 0x0;  REAL_TOPIC=orders, REAL_QID=3, __transactionId__
    committed  topic orders, queue 3, flag 0x8;  its "prepared" field says where in the log the half record lies

The bits of the flag are cleared in the half form because a prepared record gets no place in a queue, and the
half topic's queue is how open transactions are found again.
"""

from __future__ import annotations

from typing import Final

from verniermq.kernel import HALF_TOPIC, PendingMessage, Property, StoredMessage, SysFlag

HALF_QUEUE: Final = 0

CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
FIRST_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"

_POSTPONED: Final = (
    Property.DELAY,
    Property.TIMER_DELIVER_MS,
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
)
_POSTPONED_PREFIX: Final = "__HALF_"


def is_transactional(message: PendingMessage) -> bool:
    """Whether a message that a producer sends is to become a half message.

    A failed message that a consumer sends to its retry topic still carries the properties of the
    transaction it once belonged to; it has a delay and was tried before.
    """
    if message.properties.get(Property.TRANSACTION_PREPARED, "").lower() != "true":
        return False
    return message.reconsume_times <= 0 or message.properties.get(Property.DELAY, "0") == "0"


def make_half(message: PendingMessage) -> None:
    """Change a message into its half form, in place.

    A delay is put aside: it begins with the commit. (An Apache broker would delay the half message itself,
    and lose it.)
    """
    for name in _POSTPONED:
        if name in message.properties:
            message.set_property(_POSTPONED_PREFIX + name, message.properties[name])
            message.drop_property(name)
    message.set_property(Property.REAL_TOPIC, message.topic)
    message.set_property(Property.REAL_QUEUE_ID, str(message.queue_id))
    message.set_property(Property.TRANSACTION_ID, message.properties[Property.UNIQUE_KEY])
    message.topic, message.queue_id = HALF_TOPIC, HALF_QUEUE
    message.sys_flag &= ~SysFlag.TRANSACTION_MASK


def real_place(half: StoredMessage) -> tuple[str, int]:
    """The topic and queue that a half message is meant for.

    Raises:
        KeyError, ValueError: it does not say.
    """
    return half.properties[Property.REAL_TOPIC], int(half.properties[Property.REAL_QUEUE_ID])


def make_real(half: StoredMessage) -> PendingMessage:
    """The message that a commit puts. It keeps the properties of the half form, as RocketMQ's does.

    Raises:
        KeyError, ValueError: the half message does not say where it is meant to go.
    """
    topic, queue_id = real_place(half)
    message = half.pending(
        topic=topic,
        queue_id=queue_id,
        sys_flag=half.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT,
        prepared_transaction_offset=half.commit_log_offset,
    )
    for name in _POSTPONED:
        postponed = message.properties.pop(_POSTPONED_PREFIX + name, None)
        if postponed is not None:
            message.properties[name] = postponed
    return message


def immunity_ms(half: StoredMessage, timeout_ms: int) -> int:
    """How old the message must be before its producer is asked: its own wish, else the broker's time-out."""
    try:
        seconds = int(half.properties[Property.CHECK_IMMUNITY_TIME])
    except (KeyError, ValueError):
        return timeout_ms
    return timeout_ms if seconds == -1 else seconds * 1000


def times_checked(half: StoredMessage) -> int:
    text = half.properties.get(CHECK_TIMES, "0")
    return int(text) if text.isdecimal() and len(text) < 20 else 0  # a producer can send any text


def identity(half: StoredMessage) -> tuple[str, str]:
    """What all copies of one half message have in common: producer group and unique key."""
    return half.properties.get(Property.PRODUCER_GROUP, ""), half.properties.get(Property.UNIQUE_KEY, "")
