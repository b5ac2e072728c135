"""Asking other brokers about the parts of a logical queue that lie with them (RocketMQ: ``RpcClient``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from verniermq.kernel import Command, Context, PeerUnreachable, RemotingError, RequestRefused
from verniermq.protocol.peers import Peers

CALL_TIMEOUT: Final = 3.0
ANY: Final = range(2**31)


class PeerBrokers:
    """Brokers by their names; where they are, the name servers know."""

    def __init__(self, broker: Context) -> None:
        self._peers = Peers(broker.name_servers, timeout=CALL_TIMEOUT, tls=lambda: broker.outgoing_tls)
        self._addresses: dict[str, str] = {}

    async def ask(self, name: str, code: int, fields: Mapping[str, str]) -> Command:
        """Any answer will do.

        Raises:
            RequestRefused: the broker cannot be reached.
        """
        request = Command.request(code, {**fields, "lo": "false", "bname": name})
        try:
            return await self._peers.ask(await self._address(name), request, ANY)
        except RemotingError as error:
            self._addresses.pop(name, None)
            raise RequestRefused(f"broker {name!r} has a part of the queue and cannot be asked: {error}") from error

    async def _address(self, name: str) -> str:
        if name not in self._addresses:
            masters = await self._peers.masters()
            if name not in masters:
                raise PeerUnreachable(name, "the name servers know no master of this name")
            self._addresses[name] = masters[name]
        return self._addresses[name]

    def close(self) -> None:
        self._peers.close()
