"""What plugins may do with the client that they live in; see :class:`verniermq.kernel.ClientContext`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from verniermq.client.background import Background
from verniermq.client.encoder import MessageEncoder
from verniermq.client.sender import Sender
from verniermq.kernel import Command, Message


@attrs.frozen
class HostedClient:
    """A client as its plugins see it."""

    client_id: str
    group: str
    _sender: Sender
    _background: Background

    async def post(self, message: Message) -> None:
        """Send a message of a plugin's own, past all hooks and outside of namespaces.

        Raises:
            VernierMQError: it could not be sent.
        """
        await self._sender.send(MessageEncoder(self.group).prepare(message))

    def broker_address(self, broker_name: str) -> str | None:
        """Where the master of that name is, if a topic in use lives there."""
        return self._sender.routes.broker_address(broker_name)

    async def request(self, address: str, command: Command, timeout: float) -> Command:
        """Ask a broker something; any answer will do.

        Raises:
            RemotingError: there is none.
        """
        return await self._sender.pool.request(address, command, timeout)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something beside everything else, until the client closes."""
        self._background.spawn(work)
