"""How much of what was popped waits for clients to read it, so that those who do not read cost no more than a limit."""

from __future__ import annotations

from typing import Final

import attrs

from verniermq.contrib.grpc.clients import GrpcClient
from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.status import CallFailed

MOST_UNREAD: Final = 64 << 20
"""Bytes of bodies, of all clients together; a body is in memory up to three times until it is written."""
MOST_PER_CLIENT: Final = MOST_UNREAD // 2


@attrs.define(eq=False)
class Unread:
    most: int = MOST_UNREAD
    most_per_client: int = MOST_PER_CLIENT
    total: int = 0
    _by_client: dict[GrpcClient, int] = attrs.field(factory=dict, init=False)

    def check(self, client: GrpcClient) -> None:
        """
        Raises:
            CallFailed: there is too much already.
        """
        if self._by_client.get(client, 0) >= self.most_per_client:
            what = f"the client has not read {self._by_client[client]} bytes of messages; read them first"
            raise CallFailed(Code.TOO_MANY_REQUESTS, what)
        if self.total >= self.most:
            what = f"clients have not read {self.total} bytes of messages; try again later"
            raise CallFailed(Code.TOO_MANY_REQUESTS, what)

    def add(self, client: GrpcClient, size: int) -> None:
        self.total += size
        self._by_client[client] = self._by_client.get(client, 0) + size

    def remove(self, client: GrpcClient, size: int) -> None:
        self.total -= size
        left = self._by_client.get(client, 0) - size
        if left > 0:
            self._by_client[client] = left
        else:
            self._by_client.pop(client, None)
