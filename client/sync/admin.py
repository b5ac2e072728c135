"""The blocking administrator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, Unpack

from verniermq.client import admin
from verniermq.client.admin import FOREVER, QueueProgress, TopicInfo
from verniermq.client.message import ReceivedMessage
from verniermq.client.options import ConnectionOptions
from verniermq.client.sync.base import SyncClient
from verniermq.kernel import MessageQueue, Perm


class Admin(SyncClient[admin.Admin]):
    """Looks after topics, groups, offsets and messages; see :class:`verniermq.client.Admin`."""

    def __init__(self, **connection: Unpack[ConnectionOptions]) -> None:
        super().__init__(lambda: admin.Admin(**connection))

    def topics(self) -> list[str]:
        return self._call(self._running().topics)

    def topic(self, name: str) -> TopicInfo:
        return self._call(self._running().topic, name)

    def create_topic(
        self,
        name: str,
        *,
        queues: int = 8,
        perm: int = Perm.READ_WRITE,
        order: bool = False,
        brokers: Sequence[str] | None = None,
        attributes: dict[str, str] | None = None,
    ) -> None:
        client = self._running()
        self._call(
            client.create_topic, name, queues=queues, perm=perm, order=order, brokers=brokers, attributes=attributes
        )

    def delete_topic(self, name: str) -> None:
        self._call(self._running().delete_topic, name)

    def topic_offsets(self, name: str) -> dict[MessageQueue, tuple[int, int]]:
        return self._call(self._running().topic_offsets, name)

    def groups(self) -> list[str]:
        return self._call(self._running().groups)

    def create_group(self, name: str, *, max_reconsume_times: int = 16, retry_queues: int = 1) -> None:
        client = self._running()
        self._call(client.create_group, name, max_reconsume_times=max_reconsume_times, retry_queues=retry_queues)

    def delete_group(self, name: str, *, with_offsets: bool = True) -> None:
        self._call(self._running().delete_group, name, with_offsets=with_offsets)

    def members(self, group: str) -> list[str]:
        return self._call(self._running().members, group)

    def progress(self, group: str, topic: str) -> dict[MessageQueue, QueueProgress]:
        return self._call(self._running().progress, group, topic)

    def lag(self, group: str, topic: str) -> int:
        return self._call(self._running().lag, group, topic)

    def reset_offsets(
        self, group: str, topic: str, to: datetime | int | Literal["first", "last"]
    ) -> dict[MessageQueue, int]:
        return self._call(self._running().reset_offsets, group, topic, to)

    def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        return self._call(self._running().message, message_id, topic)

    def messages_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = FOREVER
    ) -> list[ReceivedMessage]:
        client = self._running()
        return self._call(client.messages_by_key, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    def dead_letters(self, group: str, *, limit: int = 100) -> list[ReceivedMessage]:
        return self._call(self._running().dead_letters, group, limit=limit)

    def resend_dead_letters(
        self,
        group: str,
        *,
        limit: int = 100,
        per_second: float = 100.0,
        keep: Callable[[ReceivedMessage], bool] | None = None,
    ) -> int:
        client = self._running()
        return self._call(client.resend_dead_letters, group, limit=limit, per_second=per_second, keep=keep)

    def brokers(self) -> dict[str, dict[int, str]]:
        return self._call(self._running().brokers)

    def clusters(self) -> dict[str, list[str]]:
        return self._call(self._running().clusters)

    def broker_info(self, broker_name: str) -> dict[str, str]:
        return self._call(self._running().broker_info, broker_name)
