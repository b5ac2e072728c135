"""A neighbour: a client that does nothing wrong, while others do, and notes how long it has to wait.

A wait is what the broker is to blame for: the time from a request to its answer, less the time for which the system had
no processor for either of the two. Without that, a busy machine looks like a broker that stalls.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import attrs

from tests.campaign.outcome import Outcome
from tests.campaign.workers import now_ms, read_queue
from tests.plugins.txn.peers import Peer, peer
from verniermq.kernel import RemotingError, ResponseCode

PERIOD = 0.004
TOPIC = "neighbour"


def seconds_without_processor(pid: int) -> float:
    """How long a process's main thread was ready to run and had to wait for a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def resident_mib(pid: int) -> float:
    """A process's memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


@attrs.define
class Neighbour:
    """Sends one small message after the other; each must be taken, soon, and be there in the end."""

    address: str
    pid: int
    outcome: Outcome
    name: str = "n"
    waits: list[float] = attrs.field(factory=list)
    """Seconds."""
    sent: list[bytes] = attrs.field(factory=list)

    async def live(self) -> None:
        """Until cancelled."""
        async with peer(self.address, self.name) as client:
            while True:
                await self._send(client)
                await anyio.sleep(PERIOD)

    async def _send(self, client: Peer) -> None:
        body = b"%s-%d" % (self.name.encode(), len(self.sent))
        idle = seconds_without_processor(self.pid) + seconds_without_processor(os.getpid())
        began = time.monotonic()
        try:
            answer = await client.send(TOPIC, body, queue_id=0, born=now_ms())
        except RemotingError as error:
            self.outcome.fail("wrong", f"a neighbour got no answer: {error}")
            raise
        wait = time.monotonic() - began
        idle = seconds_without_processor(self.pid) + seconds_without_processor(os.getpid()) - idle
        self.waits.append(max(wait - idle, 0.0))
        if answer.code == ResponseCode.SUCCESS:
            self.sent.append(body)
        else:
            self.outcome.fail("wrong", f"a neighbour was refused: {answer.code} {answer.remark}")

    @property
    def longest_ms(self) -> float:
        return 1000 * max(self.waits, default=0.0)

    @property
    def p99_ms(self) -> float:
        return 1000 * sorted(self.waits)[len(self.waits) * 99 // 100] if self.waits else 0.0

    async def check(self, client: Peer) -> None:
        """Everything that it sent is there, in order."""
        found = [message.body for message in (await read_queue(client, TOPIC, 0))[1]]
        own = [body for body in found if body.startswith(self.name.encode() + b"-")]
        unanswered = own[len(self.sent) :]  # at most the one that it was sending in the end
        self.outcome.expect(
            own[: len(self.sent)] == self.sent and len(unanswered) <= 1,
            "lost",
            f"the neighbour sent {len(self.sent)} messages, {len(own)} are there",
        )
