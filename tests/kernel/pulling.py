"""Pulls as a consumer sends them, and a way to wait for what a broker does in its own time."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from tests.plugins.peer import Peer
from verniermq.kernel import Command, RequestCode

COMMIT, SUSPEND, INCLUDED = 1, 2, 4


async def pull(client: Peer, topic: str = "orders", offset: int = 0, **fields: object) -> Command:
    """One PULL_MESSAGE that brings its own subscription; ``fields`` go over the usual ones."""
    usual: dict[str, object] = {
        "consumerGroup": "readers", "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": INCLUDED, "commitOffset": 0, "suspendTimeoutMillis": 20_000, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return await client.ask(RequestCode.PULL_MESSAGE, b"", **{**usual, **fields})


class Waiting:
    """A pull that is under way; ``answer`` is there once it was answered."""

    answer: Command | None = None

    async def run(self, client: Peer, topic: str, offset: int, fields: dict[str, object]) -> None:
        self.answer = await pull(client, topic, offset, **{"sysFlag": INCLUDED | SUSPEND, **fields})


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await anyio.sleep(0.001)
