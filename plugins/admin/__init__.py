"""Answers for ``mqadmin``, consoles and our own commands (RocketMQ: ``AdminBrokerProcessor``).

Looking never changes what is looked at: nothing here touches a group's figures or offsets except what is asked to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar

import attrs

from verniermq.kernel import Broker, Declaration, DispatchEvent, Handler, NoConfig, Service, gathered, hookimpl
from verniermq.plugins.admin.connections import ConnectionRequests
from verniermq.plugins.admin.progress import ProgressRequests
from verniermq.plugins.admin.rates import (
    BROKER_GET,
    BROKER_PUT,
    GET_NUMS,
    GET_SIZE,
    PUT_NUMS,
    PUT_SIZE,
    Rates,
)
from verniermq.plugins.admin.reset import ResetRequests
from verniermq.plugins.admin.status import StatusRequests


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Answers mqadmin: figures, progress, connections, resets.")
    config: NoConfig
    _rates: Rates = attrs.field(init=False)
    _cluster: str = attrs.field(default="", init=False)

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._rates = Rates(broker.clock)
        self._cluster = broker.configuration.broker.cluster

    @hookimpl
    def request_handlers(self, broker: Broker) -> dict[int, Handler]:
        return {
            **StatusRequests(broker, self._rates).handlers(),
            **ProgressRequests(broker, self._rates).handlers(),
            **ConnectionRequests(broker).handlers(),
            **ResetRequests(broker).handlers(),
        }

    @hookimpl
    def services(self, broker: Broker) -> Iterable[Service]:
        return [Service("sample rates", partial(self._rates.run, broker.catch_up))]

    @hookimpl
    @gathered
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        """Count per topic, once per batch and topic rather than once per message."""
        counts: dict[str, list[int]] = {}
        for event in events:
            count = counts.get(event.topic)
            if count is None:
                counts[event.topic] = [1, event.size]
            else:
                count[0] += 1
                count[1] += event.size
        for topic, (number, size) in counts.items():
            self._rates.add(PUT_NUMS, topic, number)
            self._rates.add(PUT_SIZE, topic, size)
        self._rates.add(BROKER_PUT, self._cluster, len(events))

    @hookimpl
    def messages_pulled(self, group: str, topic: str, count: int, size: int) -> None:
        key = f"{topic}@{group}"
        self._rates.add(GET_NUMS, key, count)
        self._rates.add(GET_SIZE, key, size)
        self._rates.add(BROKER_GET, self._cluster, count)
