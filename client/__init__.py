"""The Python client, for VernierMQ and for Apache RocketMQ alike: pure Python, async first.

::

    from verniermq.client import Message, Producer

    async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        await producer.send(Message("topic", b"body", tags="paid", keys=["T1"]))

The same names, blocking and safe from any thread, are in :mod:`verniermq.client.sync`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from verniermq.client.java import no_such_name

if TYPE_CHECKING:
    from verniermq.client.admin import Admin, QueueProgress, TopicInfo
    from verniermq.client.consumer.idempotence import IdempotenceGuard
    from verniermq.client.consumer.litepull import LitePullConsumer
    from verniermq.client.consumer.outcome import Consumed, Later, Outcome
    from verniermq.client.consumer.processqueue import Limits
    from verniermq.client.consumer.pull import PullConsumer
    from verniermq.client.consumer.push import PushConsumer
    from verniermq.client.consumer.simple import SimpleConsumer
    from verniermq.client.consumer.subscription import Sql
    from verniermq.client.credentials import Credentials
    from verniermq.client.message import ReceivedMessage
    from verniermq.client.producer import Producer
    from verniermq.client.results import PullResult, PullStatus, SendResult, SendStatus
    from verniermq.client.transaction import Transaction, TransactionProducer, TransactionState
    from verniermq.kernel import Message, MessageQueue

__all__ = [
    "Admin",
    "Consumed",
    "Credentials",
    "IdempotenceGuard",
    "Later",
    "Limits",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "Outcome",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueProgress",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "Sql",
    "TopicInfo",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
]

_HOME: Final = {
    "verniermq.client.admin": ("Admin", "QueueProgress", "TopicInfo"),
    "verniermq.client.consumer.idempotence": ("IdempotenceGuard",),
    "verniermq.client.consumer.litepull": ("LitePullConsumer",),
    "verniermq.client.consumer.outcome": ("Consumed", "Later", "Outcome"),
    "verniermq.client.consumer.processqueue": ("Limits",),
    "verniermq.client.consumer.pull": ("PullConsumer",),
    "verniermq.client.consumer.push": ("PushConsumer",),
    "verniermq.client.consumer.simple": ("SimpleConsumer",),
    "verniermq.client.consumer.subscription": ("Sql",),
    "verniermq.client.credentials": ("Credentials",),
    "verniermq.client.message": ("ReceivedMessage",),
    "verniermq.client.producer": ("Producer",),
    "verniermq.client.results": ("PullResult", "PullStatus", "SendResult", "SendStatus"),
    "verniermq.client.transaction": ("Transaction", "TransactionProducer", "TransactionState"),
    "verniermq.kernel": ("Message", "MessageQueue"),
}
"""Module → what it has of these names. They are imported when they are asked for, so that whoever needs a part of the
client alone, as the command line and some plugins do, does not start with all of it."""
_PLACES: Final = {name: module for module, names in _HOME.items() for name in names}


if not TYPE_CHECKING:  # or type checkers would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            no_such_name(__name__, name)
        found = globals()[name] = getattr(import_module(_PLACES[name]), name)
        return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
