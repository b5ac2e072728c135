"""What the parts of the administrator share: the masters of all brokers, by name."""

from __future__ import annotations

from collections.abc import Sequence

from verniermq.client.base import Client
from verniermq.client.errors import NoSuchBroker
from verniermq.client.names import with_namespace
from verniermq.client.routes import MASTER


class AdminBase(Client):
    def _wire(self, name: str) -> str:
        return with_namespace(self.options.namespace, name)

    async def _masters(self, brokers: Sequence[str] | None = None) -> dict[str, str]:
        """Broker name → address of its master, of all brokers or of those named.

        Raises:
            NoSuchBroker: one of those named is not there.
        """
        known = await self._name_servers.brokers()
        masters = {name: ids[MASTER] for name, ids in sorted(known.items()) if MASTER in ids}
        if brokers is None:
            return masters
        for name in [brokers] if isinstance(brokers, str) else brokers:
            if name not in masters:
                raise NoSuchBroker(name, list(masters), self._name_servers.text)
        return {name: address for name, address in masters.items() if name in brokers}
