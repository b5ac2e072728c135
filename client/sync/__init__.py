"""The client for blocking code: the same names, safe from any thread, before and after a fork.

::

    from verniermq.client.sync import Message, Producer

    with Producer("orders", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("topic", b"body", tags="paid", keys=["T1"]))

One thread of the process runs the event loop for all clients; calls from other threads wait for it. A program that ends
without closing its clients ends all the same: they are closed then.
"""

from typing import TYPE_CHECKING, NoReturn

from verniermq.client.consumer.idempotence import IdempotenceGuard
from verniermq.client.consumer.outcome import Consumed, Later, Outcome
from verniermq.client.consumer.processqueue import Limits
from verniermq.client.consumer.subscription import Sql
from verniermq.client.credentials import Credentials
from verniermq.client.java import no_such_name
from verniermq.client.message import ReceivedMessage
from verniermq.client.results import PullResult, PullStatus, SendResult, SendStatus
from verniermq.client.sync.admin import Admin
from verniermq.client.sync.consumers import LitePullConsumer, PullConsumer, PushConsumer, SimpleConsumer
from verniermq.client.sync.producers import Producer, Transaction, TransactionProducer
from verniermq.client.transaction import TransactionState
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
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "Sql",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
]


if not TYPE_CHECKING:  # or type checkers would take every name for one that is there

    def __getattr__(name: str) -> NoReturn:
        no_such_name(__name__, name)
