"""Which queue a message goes to, when the producer's turn is not what decides.

A selector is any callable ``(queues, message) -> queue``. The ready-made one goes by a sharding key: equal keys, equal
queue, so messages of one key keep their order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from verniermq.client.errors import BadSelector
from verniermq.client.java import shown
from verniermq.kernel import Message, MessageQueue, java_hash

QueueSelector: TypeAlias = Callable[[Sequence[MessageQueue], Message], MessageQueue]


def queue_by_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a sharding key (RocketMQ: ``SelectMessageQueueByHash``): the same one as Java would choose."""
    code = java_hash(key)
    # Java's remainder has the sign of the hash, and the selector takes its absolute value.
    return queues[abs(code) % len(queues)]


def by_key(key: str) -> QueueSelector:
    """A selector for one sharding key."""
    return lambda queues, message: queue_by_key(queues, key)


def at_random(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    return random.choice(queues)


def ask_selector(selector: QueueSelector, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """The queue that a selector of the program's chooses.

    Raises:
        BadSelector: it raised, or chose nothing; such a message must not go just anywhere.
    """
    name = getattr(selector, "__qualname__", None) or type(selector).__qualname__
    try:
        chosen = selector(queues, message)
    except Exception as error:
        raise BadSelector(name, f"raised {type(error).__name__}: {error}", len(queues)) from error
    if not isinstance(chosen, MessageQueue):
        raise BadSelector(name, f"returned {shown(chosen)}", len(queues))
    return chosen


class RoundRobinSelector:
    """Queue after queue, and after a failure one of another broker (RocketMQ: its default, ``MQFaultStrategy`` off)."""

    def __init__(self) -> None:
        self._turn = random.getrandbits(31)

    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        self._turn = turn = (self._turn + 1) & 0x7FFFFFFF
        queue = queues[turn % len(queues)]
        if last_broker is None or queue.broker_name != last_broker:
            return queue
        for _ in range(len(queues)):
            self._turn = turn = (turn + 1) & 0x7FFFFFFF
            other = queues[turn % len(queues)]
            if other.broker_name != last_broker:
                return other
        return queue

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        """Nothing to learn."""
