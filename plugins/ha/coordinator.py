"""What brokers that choose their master agree through: a store that others have made safe (etcd, for one).

It keeps one small state for each broker name, which is changed only by whoever knows what it was before, and says which
replicas are alive. It does not decide anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
import orjson

from verniermq.kernel import VernierMQError, hookspec
from verniermq.plugins.ha.election import State


class CoordinatorTrouble(VernierMQError):
    """The coordinator cannot be asked now. Whether a change was made that it was asked for is not known."""


class ChangeRefused(VernierMQError):
    """The coordinator made no change, and would make this one at another time."""


@attrs.frozen
class Live:
    """What a replica says of itself while it is alive."""

    incarnation: str
    address: str
    """Where clients find it."""
    ha_address: str
    epoch: int = 0
    """The newest term that wrote to its log."""
    end: int = 0
    confirm: int = 0
    leads: int = 0
    """The term of which it is the master now; 0 if it is none."""

    def packed(self) -> bytes:
        return orjson.dumps(attrs.asdict(self))

    @classmethod
    def of(cls, text: bytes) -> Live:
        data = orjson.loads(text)
        return cls(**{field.name: data[field.name] for field in attrs.fields(cls)})


@attrs.frozen
class Snapshot:
    """What the coordinator has of one broker name at one moment."""

    state: State | None
    """``None`` before the first master."""
    revision: int
    """Of the state; 0 if there is none."""
    live: Mapping[int, Live] = attrs.field(factory=dict)
    members: Mapping[int, Live] = attrs.field(factory=dict)
    """What each replica said of itself when it was last started, alive or not."""


class Coordinator(Protocol):
    """The part of a consensus store that belongs to one broker name.

    Every method raises :class:`CoordinatorTrouble` if there is no answer.
    """

    elects_alone: bool
    """Whether an election leaves the new master alone in the set, whatever was asked for."""

    async def read(self) -> Snapshot:
        """What it has now: never older than what anybody read before."""

    async def change(self, state: State, revision: int) -> int:
        """Store another state if the revision is still this one; the new revision, or 0 if it was not.

        After :class:`CoordinatorTrouble` it may have been stored, or be stored yet: ask for the same again until there
        is an answer.

        Raises:
            ChangeRefused: nothing was changed, and nobody else changed anything either.
        """

    async def announce(self, replica: int, live: Live) -> None:
        """Say that a replica is alive; it counts as such until :attr:`ttl` after the last :meth:`keep_alive`."""

    async def keep_alive(self) -> bool:
        """Whether what was announced still stands."""

    async def leave(self) -> None:
        """What was announced no longer counts."""

    async def changed(self) -> None:
        """Wait until something may have changed since the last :meth:`read`."""


@hookspec("question")
def coordinator_for(cluster: str, broker: str, ttl: float) -> Coordinator | None:
    """Say through what the replicas of this broker choose their master, if it is neither etcd nor Apache's controller.

    Asked once, before the store is opened, by a replica whose ``[plugins.ha]`` names none. A replica that is not heard
    of for ``ttl`` seconds is gone. Used by ``zookeeper``.
    """


def pack_state(state: State) -> bytes:
    in_sync = sorted([number, incarnation] for number, incarnation in state.in_sync)
    return orjson.dumps({"term": state.term, "master": state.master, "in_sync": in_sync})


def unpack_state(text: bytes) -> State:
    """
    Raises:
        CoordinatorTrouble: it is something else.
    """
    try:
        data: dict[str, Any] = orjson.loads(text)
        in_sync = frozenset((int(number), str(incarnation)) for number, incarnation in data["in_sync"])
        return State(int(data["term"]), int(data["master"]), in_sync)
    except (ValueError, KeyError, TypeError) as error:
        raise CoordinatorTrouble(f"the coordinator has {text[:100]!r}, which is no state of brokers") from error
