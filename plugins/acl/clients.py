"""Whose client id is whose: replies go to the client that has the id, so nobody may take another's.

A client chooses its id itself and tells it in its heartbeats. The first account that does has it, until no heartbeat
came for a while: long enough for a client whose connection broke to come back before another can have its id.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import attrs

KEPT_SECONDS: Final = 600.0
MOST_PER_OWNER: Final = 10_000
"""Ids of one account; who claims more gives up its own oldest, and nobody else's."""


@attrs.define(eq=False)
class ClientOwners:
    _owners: dict[str, str] = attrs.field(factory=dict, init=False)
    _seen: dict[str, OrderedDict[str, float]] = attrs.field(factory=dict, init=False)
    """Owner → client id → when its last heartbeat came, oldest first."""

    def claim(self, client_id: str, owner: str, now: float) -> str:
        """Note a heartbeat at the monotonic time ``now``, and return whose id it is; it may be another's."""
        holder = self._owners.get(client_id, owner)
        if holder != owner:
            if now - self._seen[holder][client_id] <= KEPT_SECONDS:
                return holder
            self._release(client_id)
        seen = self._seen.setdefault(owner, OrderedDict())
        seen[client_id] = now
        seen.move_to_end(client_id)
        self._owners[client_id] = owner
        oldest, last = next(iter(seen.items()))
        if len(seen) > MOST_PER_OWNER or now - last > KEPT_SECONDS:
            self._release(oldest)
        return owner

    def _release(self, client_id: str) -> None:
        owner = self._owners.pop(client_id)
        seen = self._seen[owner]
        del seen[client_id]
        if not seen:
            del self._seen[owner]
