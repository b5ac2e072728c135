"""Where the logical queues of a static topic lie (RocketMQ: ``TopicQueueMappingDetail``, ``LogicQueueMappingItem``).

A logical queue is a chain of physical ones. The last one, its *leader*, takes messages; the others are where it was
before, on other brokers or on this one. Offsets go on over the whole chain::

    logical    0 ········ 520     1000 ············· 1730
    physical   broker-a, queue 3   broker-b, queue 0
               0 ········ 520     0 ··············· 730        logic_offset 1000: where broker-b's part begins

While a queue moves, its new leader has no logic offset yet (-1); it is decided when the old one takes no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from verniermq.kernel import MAX_QUEUES, InvalidParameter

GLOBAL: Final = "__global__"
UNDECIDED: Final = -1


@attrs.frozen
class MappedQueue:
    """A physical queue as a part of a logical one."""

    gen: int
    queue_id: int
    broker: str
    logic_offset: int
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1

    @property
    def is_decided(self) -> bool:
        return self.logic_offset >= 0

    @property
    def delta(self) -> int:
        """What is added to a physical offset."""
        return self.logic_offset - self.start_offset

    def physical(self, logical: int) -> int:
        return logical - self.delta

    def logical(self, physical: int) -> int:
        return self.logic_offset + max(0, physical - self.start_offset)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MappedQueue:
        return cls(
            int(data["gen"]), int(data["queueId"]), str(data["bname"]), int(data["logicOffset"]),
            int(data.get("startOffset", 0)), int(data.get("endOffset", -1)), int(data.get("timeOfStart", -1)),
            int(data.get("timeOfEnd", -1)),
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {
            "bname": self.broker,
            "endOffset": self.end_offset,
            "gen": self.gen,
            "logicOffset": self.logic_offset,
            "queueId": self.queue_id,
            "startOffset": self.start_offset,
            "timeOfEnd": self.time_of_end,
            "timeOfStart": self.time_of_start,
        }


Chain = tuple[MappedQueue, ...]


@attrs.frozen
class TopicMapping:
    """The logical queues of one topic as one broker knows them: those that it leads, and those that it led."""

    topic: str
    total_queues: int
    broker: str
    epoch: int
    scope: str = GLOBAL
    chains: Mapping[int, Chain] = attrs.field(factory=dict, hash=False)
    """Logical queue → its physical ones, the oldest first."""

    @property
    def led(self) -> dict[int, int]:
        """Logical → physical queue, of those that this broker leads."""
        last = {logical: chain[-1] for logical, chain in self.chains.items() if chain}
        return {logical: queue.queue_id for logical, queue in last.items() if queue.broker == self.broker}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TopicMapping:
        """
        Raises:
            InvalidParameter: a member is missing or of the wrong type, or a chain is none.
        """
        try:
            hosted = dict(data.get("hostedQueues") or {})
            mapping = cls(
                str(data["topic"]), int(data["totalQueues"]), str(data["bname"]), int(data["epoch"]),
                str(data.get("scope") or GLOBAL),
                {int(logical): tuple(map(MappedQueue.from_json, chain)) for logical, chain in hosted.items()},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidParameter(f"a queue mapping is malformed: {error!r:.200}") from error
        if not 0 <= mapping.total_queues <= MAX_QUEUES:
            raise InvalidParameter(f"a queue mapping of {mapping.total_queues} queues; expected 0 to {MAX_QUEUES}")
        for logical, chain in mapping.chains.items():
            if not 0 <= logical < mapping.total_queues:
                raise InvalidParameter(f"logical queue {logical} of {mapping.total_queues}")
            check_chain(logical, chain)
        return mapping

    def as_json(self) -> dict[str, Any]:
        hosted = {str(logical): [queue.as_json() for queue in chain] for logical, chain in self.chains.items()}
        return {**self.as_route(), "currIdMap": {}, "hostedQueues": hosted}

    def as_route(self) -> dict[str, Any]:
        """What the name server is told (RocketMQ: ``TopicQueueMappingInfo``)."""
        return {
            "bname": self.broker,
            "currIdMap": {str(logical): physical for logical, physical in self.led.items()},
            "dirty": False,
            "epoch": self.epoch,
            "scope": self.scope,
            "topic": self.topic,
            "totalQueues": self.total_queues,
        }

    def after(self, old: TopicMapping, *, force: bool) -> TopicMapping:
        """This mapping as the successor of another: with the chains that only the other one has.

        Raises:
            InvalidParameter: it is older, or changes what cannot change.
        """
        chains = {**old.chains, **self.chains}
        if not force:
            if self.epoch < old.epoch:
                raise InvalidParameter(f"topic {self.topic!r}: epoch {self.epoch} is older than {old.epoch}")
            if self.scope != old.scope:
                raise InvalidParameter(f"topic {self.topic!r}: scope {self.scope!r:.80}, it was {old.scope!r}")
            for logical, chain in old.chains.items():
                _check_successor(logical, chain, self.chains.get(logical), same_epoch=self.epoch == old.epoch)
        return attrs.evolve(self, chains=chains)


def check_chain(logical: int, chain: Chain) -> None:
    """
    Raises:
        InvalidParameter: a number is out of range, or generations or offsets do not grow.
    """
    for queue in chain:
        if queue.gen < 0 or queue.start_offset < 0 or not 0 <= queue.queue_id < MAX_QUEUES:
            raise InvalidParameter(f"logical queue {logical}: {queue} has a number that is out of range")
        if UNDECIDED < queue.end_offset < queue.start_offset:
            raise InvalidParameter(f"logical queue {logical}: {queue} ends before it begins")
    for earlier, later in itertools.pairwise(chain):
        if earlier.gen >= later.gen:
            raise InvalidParameter(f"logical queue {logical}: generation {later.gen} follows {earlier.gen}")
        if not earlier.is_decided:
            raise InvalidParameter(f"logical queue {logical}: only its last part may lack a logic offset")
        end = earlier.logical(max(earlier.start_offset, earlier.end_offset))
        if later.is_decided and end >= later.logic_offset:
            raise InvalidParameter(f"logical queue {logical}: offset {later.logic_offset} follows {end}")


def _check_successor(logical: int, old: Chain, new: Chain | None, *, same_epoch: bool) -> None:
    if not new:
        if same_epoch:
            raise InvalidParameter(f"logical queue {logical} is missing, and the epoch is the same")
        return
    known = {queue.gen: queue for queue in old}
    for queue in new:
        before = known.get(queue.gen)
        if before is None:
            continue
        same = (before.broker, before.queue_id, before.start_offset) == (
            queue.broker,
            queue.queue_id,
            queue.start_offset,
        )
        if not same or (before.is_decided and before.logic_offset != queue.logic_offset):
            raise InvalidParameter(
                f"logical queue {logical}: generation {queue.gen} is {before}, and cannot be changed"
            )
    if same_epoch and new[-1].gen != old[-1].gen:
        raise InvalidParameter(f"logical queue {logical} has a new leader, and the epoch is the same")


def part_of(chain: Sequence[MappedQueue], logical_offset: int) -> MappedQueue:
    """The physical queue that has an offset, or would have it; the first one for what is before all of them."""
    decided = [queue for queue in chain if queue.is_decided]
    return next((queue for queue in reversed(decided) if logical_offset >= queue.logic_offset), decided[0])


def following(chain: Sequence[MappedQueue], queue: MappedQueue) -> MappedQueue | None:
    """The part after this one, if it is decided where it begins."""
    return next((later for later in chain if later.gen > queue.gen and later.is_decided), None)
