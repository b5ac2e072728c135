"""The Python client, for VernierMQ and for Apache RocketMQ alike: pure Python, async first.

::

    from verniermq.client import Message, Producer

    async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        await producer.send(Message("topic", b"body", tags="paid", keys=["T1"]))

The same names, blocking and safe from any thread, are in :mod:`verniermq.client.sync`.
"""

from typing import TYPE_CHECKING, NoReturn

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
from verniermq.client.java import no_such_name
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


if not TYPE_CHECKING:  # or type checkers would take every name for one that is there

    def __getattr__(name: str) -> NoReturn:
        no_such_name(__name__, name)
