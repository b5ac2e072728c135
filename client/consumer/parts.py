"""A push consumer's parts, made and connected: who pulls, who keeps offsets, who calls the handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from anyio import CapacityLimiter

from verniermq.client.consumer.assignment import Assignment
from verniermq.client.consumer.calling import Caller
from verniermq.client.consumer.concurrent import ConcurrentService
from verniermq.client.consumer.handback import HandBack
from verniermq.client.consumer.offsets import BrokerOffsets, FileOffsets, Offsets
from verniermq.client.consumer.orderly import Locks, OrderlyService, is_locked
from verniermq.client.consumer.pulling import Puller
from verniermq.client.consumer.rebalance import Rebalancer
from verniermq.client.outgoing import Preparer
from verniermq.client.selectors import RoundRobin
from verniermq.client.sending import Sender

if TYPE_CHECKING:
    from verniermq.client.consumer.pushing import PushBase

DEFAULT_RECONSUME_TIMES: Final = 16
INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""The group under which consumers send what could not be handed back."""


def put_together(consumer: PushBase) -> None:
    """Make the parts of a consumer that has just connected."""
    settings = consumer.settings
    api, routes, group, client_id = consumer._api, consumer._routes, consumer._wire_group, consumer.client_id
    locks = Locks(api, routes, group, client_id) if settings.orderly and not settings.broadcasting else None
    consumer._locks = locks
    consumer._offsets = offsets = _offsets(consumer)
    consumer._service = _service(consumer)
    consumer._assignment = assignment = Assignment(
        api, routes, offsets, settings.start, settings.limits, consumer._begin_queue, locks,
        watch_span=not settings.orderly,
    )  # fmt: skip
    consumer._rebalancer = Rebalancer(
        api, routes, consumer.host, group, client_id, settings.allocate, settings.broadcasting,
        lambda: list(consumer._subscriptions), assignment.apply, consumer._heartbeat_to, settings.rebalance_interval,
    )  # fmt: skip
    consumer._puller = Puller(
        api, routes, offsets, group, settings.pull_batch, consumer._subscription, consumer._deliver,
        assignment.restart, (lambda held: True) if locks is None else is_locked,
        commits=not settings.broadcasting, interval=settings.pull_interval,
    )  # fmt: skip
    if consumer._paused:
        consumer._puller.running.clear()


def _offsets(consumer: PushBase) -> Offsets:
    if consumer.broadcasting:
        folder = consumer.settings.offset_folder / consumer.client_id / consumer._wire_group
        return FileOffsets(folder / "offsets.json")
    return BrokerOffsets(consumer._api, consumer._routes, consumer._wire_group)


def _service(consumer: PushBase) -> ConcurrentService | OrderlyService:
    settings = consumer.settings
    handler, takes_batch = consumer._handler or (consumer._iteration, False)
    assert handler is not None, "a consumer without a handler is iterated"
    caller = Caller(
        handler, takes_batch, consumer.group, consumer.client_id, consumer._hooks,
        CapacityLimiter(settings.concurrency), settings.guard, settings.none_means_later,
    )  # fmt: skip
    sender = Sender(consumer._pool, consumer._routes, RoundRobin(), consumer._name_servers.text)
    limit = settings.max_reconsume_times
    hand_back = HandBack(
        consumer._api, consumer._routes, sender, Preparer(INNER_GROUP), consumer._wire_group,
        limit if limit >= 0 else DEFAULT_RECONSUME_TIMES,
    )  # fmt: skip
    batch_size = settings.batch_size if takes_batch else 1
    if settings.orderly:
        return OrderlyService(
            caller, consumer._offsets, hand_back, asyncio.Semaphore(settings.concurrency), batch_size,
            settings.broadcasting, settings.suspend, limit,
        )  # fmt: skip
    return ConcurrentService(
        caller, consumer._offsets, hand_back, settings.concurrency, batch_size, settings.broadcasting,
        settings.stuck_after, consumer._message_retried,
    )  # fmt: skip
