"""What the parts of the administrator share: the masters of all brokers, by name."""

from __future__ import annotations

from collections.abc import Sequence

from verniermq.client.base import Client
from verniermq.client.names import with_namespace
from verniermq.client.routes import MASTER


class AdminBase(Client):
    def _wire(self, name: str) -> str:
        return with_namespace(self.options.namespace, name)

    async def _masters(self, brokers: Sequence[str] | None = None) -> dict[str, str]:
        """Broker name → address of its master."""
        known = await self._name_servers.brokers()
        wanted = {name: ids for name, ids in sorted(known.items()) if not brokers or name in brokers}
        return {name: ids[MASTER] for name, ids in wanted.items() if MASTER in ids}
