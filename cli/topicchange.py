"""What ``verniermq topic create`` would change, broker by broker, and which messages would go out of sight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from verniermq.cli.client import counted
from verniermq.client.admin import Admin
from verniermq.client.errors import NoRoute
from verniermq.client.routes import MASTER
from verniermq.protocol.topics import MESSAGE_TYPE

NEW: Final[Mapping[str, Any]] = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "order": False}
"""A topic of which nothing is said, by RocketMQ's names."""


@attrs.frozen
class WantedTopic:
    """What is said of a topic; ``None`` where nothing is."""

    queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    kind: str | None = None

    def members(self, current: Mapping[str, Any]) -> dict[str, Any]:
        """What a broker shall have that has ``current``."""
        said = {"readQueueNums": self.queues, "writeQueueNums": self.queues, "perm": self.perm, "order": self.order}
        return {**current, **{name: value for name, value in said.items() if value is not None}}

    @property
    def attributes(self) -> str:
        """As brokers take changes of them."""
        return "" if self.kind is None else f"+{MESSAGE_TYPE}={self.kind.upper()}"

    def is_met(self, current: Mapping[str, Any]) -> bool:
        kind = (current.get("attributes") or {}).get(MESSAGE_TYPE)
        return self.members(current) == current and (self.kind is None or self.kind.upper() == kind)


@attrs.frozen
class TopicChange:
    brokers: Mapping[str, Mapping[str, Any]]
    """Broker name → what the topic shall be there, by RocketMQ's names."""
    changes: bool
    """Whether any broker has it otherwise, or not at all."""
    hidden: Mapping[str, tuple[range, int]]
    """Broker name → the queues that would go out of sight, and their messages, if there are any."""

    def out_of_sight(self) -> Iterator[str]:
        for broker, (queues, messages) in self.hidden.items():
            which = f"queue {queues[0]}" if len(queues) == 1 else f"queues {queues[0]} to {queues[-1]}"
            yield (
                f"{counted(messages, 'message')} of {which} on {broker} would go out of sight until there are as many "
                "queues again"
            )

    @property
    def queues_text(self) -> str:
        """``8 queues on a, b; 4 queues on c``."""
        by_count: dict[int, list[str]] = {}
        for broker, members in self.brokers.items():
            by_count.setdefault(members["readQueueNums"], []).append(broker)
        return "; ".join(f"{counted(count, 'queue')} on {', '.join(names)}" for count, names in by_count.items())

    def as_json(self) -> dict[str, Any]:
        return {
            "queues": max((members["readQueueNums"] for members in self.brokers.values()), default=0),
            "perm": max((members["perm"] for members in self.brokers.values()), default=0),
            "brokers": list(self.brokers), "changed": self.changes,
            "hidden": sum(messages for _, messages in self.hidden.values()),
        }  # fmt: skip


async def plan_change(admin: Admin, name: str, wanted: WantedTopic) -> TopicChange:
    """What a topic shall be on every broker that has a master; one that lacks it gets it as another has it."""
    masters = sorted(broker for broker, ids in (await admin.brokers()).items() if MASTER in ids)
    try:
        current = await admin.topic_settings(name)
    except NoRoute:
        current = {}
    pattern = next(iter(current.values()), NEW)
    brokers = {broker: wanted.members(current.get(broker, pattern)) for broker in masters}
    changes = any(broker not in current or not wanted.is_met(current[broker]) for broker in masters)
    hidden: dict[str, tuple[range, int]] = {}
    if any(len(_taken(current.get(broker), members)) for broker, members in brokers.items()):
        offsets = await admin.topic_offsets(name)
        for broker, members in brokers.items():
            taken = _taken(current.get(broker), members)
            messages = sum(
                high - low for queue, (low, high) in offsets.items()
                if queue.broker_name == broker and queue.queue_id in taken
            )  # fmt: skip
            if messages:
                hidden[broker] = taken, messages
    return TopicChange(brokers, changes, hidden)


def _taken(current: Mapping[str, Any] | None, members: Mapping[str, Any]) -> range:
    """The queues that can no longer be read."""
    return range(members["readQueueNums"], current["readQueueNums"]) if current else range(0)
