"""What the handlers use of the broker that they belong to. A broker knows its handlers; they do not know it."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from verniermq.kernel.clock import Clock
    from verniermq.kernel.config import Configuration
    from verniermq.kernel.handlers.acknowledgements import Acknowledgements
    from verniermq.kernel.handlers.longpoll import HeldPulls
    from verniermq.kernel.host.brokerhost import BrokerHost
    from verniermq.kernel.message import MessageFilter, PendingMessage, Subscription
    from verniermq.kernel.remoting import Connection
    from verniermq.kernel.store import Appended, Store
    from verniermq.kernel.tables.clients import ClientRegistry
    from verniermq.kernel.tables.groups import GroupTable
    from verniermq.kernel.tables.offsets import ConsumerOffsets
    from verniermq.kernel.tables.topics import TopicTable


class BrokerParts(Protocol):
    """See ``Broker`` for what each of them does."""

    configuration: Configuration
    clock: Clock
    host: BrokerHost
    store: Store
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    held_pulls: HeldPulls
    acknowledgements: Acknowledgements

    def before_append(self, message: PendingMessage, connection: Connection | None) -> Awaitable[None] | None: ...
    def is_saved(self, topic: str) -> bool: ...
    def saving_topic(
        self, message: PendingMessage, connection: Connection | None = None
    ) -> Coroutine[Any, Any, None] | None: ...
    def note_appended(self, message: PendingMessage, appended: Appended) -> None: ...
    def compile_filter(self, subscription: Subscription) -> MessageFilter: ...
    def messages_pulled(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None: ...
