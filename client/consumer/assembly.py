"""A push consumer's parts, made and connected: who pulls, who keeps offsets, who calls the handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import attrs
from anyio import CapacityLimiter

from verniermq.client.base import INNER_GROUP
from verniermq.client.consumer.assignment import Assignment
from verniermq.client.consumer.concurrent import ConcurrentService
from verniermq.client.consumer.handback import HandBack
from verniermq.client.consumer.invoker import HandlerInvoker
from verniermq.client.consumer.offsets import BrokerOffsets, FileOffsets, Offsets
from verniermq.client.consumer.orderly import HeldLocks, OrderlyService
from verniermq.client.consumer.popper import Popper
from verniermq.client.consumer.popservice import PopService
from verniermq.client.consumer.puller import Puller
from verniermq.client.consumer.rebalance import Rebalancer
from verniermq.client.consumer.renewal import Renewal
from verniermq.client.encoder import MessageEncoder
from verniermq.client.selectors import RoundRobinSelector
from verniermq.client.sender import Sender

if TYPE_CHECKING:
    from verniermq.client.consumer.push import PushConsumer

USUAL_TIMES: Final = 16
"""How often a popped message comes again, unless the consumer says: brokers have no setting for that."""


@attrs.frozen
class Parts:
    """What a push consumer consists of while it is connected."""

    offsets: Offsets
    assignment: Assignment
    rebalancer: Rebalancer
    puller: Puller
    service: ConcurrentService | OrderlyService | PopService
    locks: HeldLocks | None
    """Of a consumer that works in order."""


def put_together(consumer: PushConsumer) -> Parts:
    """Make the parts of a consumer that has just connected."""
    settings = consumer.settings
    api, routes, group, client_id = consumer._api, consumer._routes, consumer._wire_group, consumer.client_id
    locks = HeldLocks(api, routes, group, client_id) if settings.orderly and not settings.broadcasting else None
    offsets = _offsets(consumer)
    assignment = Assignment(
        api, routes, offsets, settings.start, settings.limits, consumer._begin_queue, locks,
        watch_span=not settings.orderly,
    )  # fmt: skip
    rebalancer = Rebalancer(
        api, routes, consumer.host, group, client_id, settings.allocate, settings.broadcasting,
        lambda: list(consumer._subscriptions), assignment.apply, consumer._heartbeat_to, settings.rebalance_interval,
    )  # fmt: skip
    puller = Puller(
        api, routes, offsets, group, settings.pull_batch, consumer._subscription, consumer._deliver,
        assignment.restart, (lambda held: True) if locks is None else locks.is_locked,
        commits=not settings.broadcasting, interval=settings.pull_interval, on_damage=settings.on_damage,
    )  # fmt: skip
    if consumer._paused:
        puller.running.clear()
    return Parts(offsets, assignment, rebalancer, puller, _service(consumer, offsets, puller, locks), locks)


def _offsets(consumer: PushConsumer) -> Offsets:
    if consumer.broadcasting:
        folder = consumer.settings.offset_folder / consumer.client_id / consumer._wire_group
        return FileOffsets(folder / "offsets.json")
    return BrokerOffsets(consumer._api, consumer._routes, consumer._wire_group)


def _service(
    consumer: PushConsumer, offsets: Offsets, puller: Puller, locks: HeldLocks | None
) -> ConcurrentService | OrderlyService | PopService:
    settings = consumer.settings
    handler, takes_batch = consumer._handler or (consumer._iteration, False)
    assert handler is not None, "a consumer without a handler is iterated"
    invoker = HandlerInvoker(
        handler, takes_batch, consumer.group, consumer.client_id, consumer._hooks,
        CapacityLimiter(settings.concurrency), settings.guard, settings.none_means_later,
        lambda: consumer._background.is_open,
    )  # fmt: skip
    sender = Sender(consumer._pool, consumer._routes, RoundRobinSelector(), consumer._name_servers.text)
    limit = settings.max_reconsume_times
    hand_back = HandBack(
        consumer._api, consumer._routes, sender, MessageEncoder(INNER_GROUP), consumer._wire_group,
        limit if limit >= 0 else None,
    )  # fmt: skip
    batch_size = settings.batch_size if takes_batch else 1
    if settings.mode == "pop":
        return _pop_service(consumer, puller, invoker, batch_size)
    if settings.orderly:
        return OrderlyService(
            invoker, offsets, hand_back, asyncio.Semaphore(settings.concurrency), batch_size,
            settings.broadcasting, settings.suspend, limit, locks,
        )  # fmt: skip
    return ConcurrentService(
        invoker, offsets, hand_back, settings.concurrency, batch_size, settings.broadcasting,
        settings.stuck_after, consumer._message_retried,
    )  # fmt: skip


def _pop_service(consumer: PushConsumer, puller: Puller, invoker: HandlerInvoker, batch_size: int) -> PopService:
    settings = consumer.settings
    limit = settings.max_reconsume_times
    popper = Popper(
        consumer._api, consumer._routes, consumer._wire_group, consumer.options.namespace, settings.start == "last",
        (limit if limit >= 0 else USUAL_TIMES) + 1, consumer._popped_subscriptions,
    )  # fmt: skip
    renewal = Renewal(popper, settings.invisible, settings.stuck_after)
    return PopService(popper, renewal, invoker, settings.concurrency, batch_size, puller.running)
