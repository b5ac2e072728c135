"""Kill -9: a broker dies without warning, again and again, while all kinds of messages pass through it."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import attrs

from tests.campaign import workers
from tests.campaign.outcome import Kind, Outcome
from tests.plugins.txn import peers
from verniermq.client import PushConsumer, ReceivedMessage
from verniermq.kernel import RemotingError
from verniermq.testing import BrokerProcess
from verniermq.testing.broker import BrokerProcessFailed

KEPT_MS = 1000
"""How long messages are kept in the lives in which they are not kept for ever."""
LEVELS = ",".join(f"{milliseconds}ms" for milliseconds in workers.LEVELS_MS)


def settings(chance: random.Random, *, is_kept: bool) -> list[str]:
    """Small files, so that all of them fill up and roll over within seconds; flushes of both kinds."""
    chosen = {
        "store.flush": chance.choice(("sync", "async")),
        "store.segment_size": chance.choice(("256KiB", "1MiB", "4MiB")),
        "store.max_message_size": "64KiB",
        "store.queue_entries": chance.choice((50, 500)),
        "store.checkpoint_interval": chance.choice(("50ms", "1s")),
        "store.flush_interval": chance.choice(("20ms", "500ms")),
        "offsets.persist_interval": "100ms",
        "plugins.schedule.levels": f"[{', '.join(repr(level) for level in LEVELS.split(','))}]".replace("'", '"'),
        "plugins.schedule.persist_interval": "200ms",
        "plugins.schedule.timer_file_size": "64KiB",
        "plugins.txn.timeout": "300ms",
        "plugins.txn.check_interval": "300ms",
        "plugins.txn.check_max": "1000",
        "plugins.query.slots": "100",
        "plugins.query.entries": chance.choice(("60", "1000")),
        "plugins.query.sync_interval": "50ms",
    }
    if not is_kept:
        hours = ";".join(f"{hour:02}" for hour in range(24))
        chosen |= {
            "plugins.retention.max_age": f"{KEPT_MS}ms", "plugins.retention.interval": "100ms",
            "plugins.retention.delete_when": hours, "store.segment_size": "256KiB",
        }  # fmt: skip
    return [f"--set={key}={value}" for key, value in chosen.items()]


@attrs.define(eq=False)
class OrderlyGroup:
    """The client's own consumer, in order, alive through all kills: it skips nothing."""

    topic: str
    outcome: Outcome
    last: dict[int, int] = attrs.field(factory=dict)
    handled: set[tuple[int, int]] = attrs.field(factory=set)

    def consumer(self, namesrv: str) -> PushConsumer:
        consumer = PushConsumer(f"{self.topic}-orderly", namesrv=namesrv, start="first", orderly=True)
        consumer.subscribe(self.topic)

        @consumer.on_message
        async def handle(message: ReceivedMessage) -> None:
            queue = message.queue.queue_id
            before = self.last.get(queue, -1)
            self.outcome.expect(
                message.queue_offset <= before + 1, "wrong",
                f"orderly: queue {queue} went from {before} to {message.queue_offset}",
            )  # fmt: skip
            if message.queue_offset <= before:
                self.outcome.notes["handled again by the orderly consumer"] += 1
            self.last[queue] = message.queue_offset
            self.handled.add((queue, message.queue_offset))

        return consumer


@attrs.define(eq=False)
class Life:
    """A store, the brokers that serve it one after the other, and the workers that they serve."""

    process: BrokerProcess
    chance: random.Random
    outcome: Outcome
    workers: list[workers.Worker]

    async def work_and_kill(self, seconds: float) -> None:
        """Let all workers work for so long, then kill the broker under them."""
        async with anyio.create_task_group() as tasks:
            for worker in self.workers:
                tasks.start_soon(self._work, worker)
            await anyio.sleep(seconds)
            await anyio.to_thread.run_sync(self.process.kill)
        self.outcome.rounds += 1
        for worker in self.workers:
            if isinstance(worker, workers.Committer):
                worker.killed()

    async def _work(self, worker: workers.Worker) -> None:
        try:
            async with peers.peer(self.process.broker, worker.name) as peer:
                await worker.work(peer)
        except* (RemotingError, OSError, anyio.EndOfStream, anyio.ClosedResourceError):
            pass  # it was killed

    async def start(self) -> None:
        """Start again; now and then the start itself is killed as well."""
        while self.chance.random() < 0.25:
            timer = threading.Timer(self.chance.uniform(0.2, 0.8), self._kill_a_start)
            timer.start()
            try:
                await anyio.to_thread.run_sync(self.process.start)
            except BrokerProcessFailed:
                pass
            timer.cancel()
            timer.join()
            self.process.kill()
            self.outcome.rounds += 1
        await anyio.to_thread.run_sync(self.process.start)

    def _kill_a_start(self) -> None:
        try:
            os.kill(self.process.pid, signal.SIGKILL)
        except (AssertionError, ProcessLookupError):
            pass  # it was not so far yet, or was ready already

    async def check(self) -> None:
        for worker in self.workers:
            async with peers.peer(self.process.broker, f"{worker.name}-check") as peer:
                await worker.check(peer)

    async def finish(self) -> None:
        for worker in self.workers:
            async with peers.peer(self.process.broker, f"{worker.name}-end") as peer:
                await worker.finish(peer, self.process.advance)


async def live(seed: int, folder: Path, kills: int | None = None) -> Outcome:
    chance = random.Random(seed)
    is_kept = chance.random() < 0.85
    kept_ms = None if is_kept else KEPT_MS
    outcome = Outcome(rounds=0)
    store = folder / "store"
    make = functools.partial(dict, seed=seed, outcome=outcome)
    everyone: list[workers.Worker] = [
        workers.Sender("plain", **make(), kept_ms=kept_ms),
        workers.BatchSender("batch", **make(), kept_ms=kept_ms, pause=0.002),
    ]
    if is_kept:  # where messages are kept for a second, nothing can be promised of those that wait
        everyone += [
            workers.LevelSender("levels", **make(), pause=0.005),
            workers.TimedSender("timed", **make(), pause=0.005),
            workers.Transactor("halves", **make(), pause=0.005),
            workers.Retrier("retried", **make(), pause=0.01),
            workers.Committer("offsets", **make(), pause=0.005, store=store),
            workers.TopicMaker("topic", **make(), pause=0.02),
            workers.Popper("popped", **make(), pause=0.005),  # the last: its end moves the clock
        ]
    process = BrokerProcess(store, settings(chance, is_kept=is_kept))
    orderly = OrderlyGroup("plain", outcome)
    began = time.monotonic()
    process.start()
    try:
        async with AsyncExitStack() as stack:
            life = Life(process, chance, outcome, everyone)
            for number in range(kills or chance.randrange(4, 9)):
                await life.work_and_kill(chance.uniform(0.05, 0.7))
                await life.start()
                await life.check()
                if is_kept and number == 0:
                    await stack.enter_async_context(orderly.consumer(process.namesrv))
            if is_kept:
                wanted = set(everyone[0].acknowledged.values())
                await everyone[0].until("not handled in order", lambda: wanted - orderly.handled)
            await life.finish()
        await anyio.to_thread.run_sync(process.stop)
    finally:
        process.kill()
    said = process.log.read_text(errors="replace")
    outcome.expect("Traceback" not in said, "wrong", f"a traceback in the log: {said[said.find('Traceback') :][:1500]}")
    outcome.notes["seconds"] += round(time.monotonic() - began)
    return outcome


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(live, seed, folder)


KIND = Kind(
    "kill",
    "messages",
    "After kill -9 each acknowledged message is there once, in order, found by key, delivered when due.",
    run,
)
