"""Answers that wait until others have the messages: which wait together, and what they say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import attrs
import pytest

from tests.kernel.enabling import enabled
from tests.kernel.pulling import until
from tests.plugins.peer import Peer, peer
from verniermq.kernel import (
    Appended,
    Broker,
    Command,
    Context,
    Declaration,
    NoConfig,
    RequestCode,
    ResponseCode,
    hookimpl,
)
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

MESSAGES = 50


@attrs.define(eq=False)
class Slaves:
    """Confirms when the test says so, and in the way it says."""

    declaration: ClassVar = Declaration(api=1, summary="Confirms what a test wants confirmed.", on_failure="closed")
    config: NoConfig
    broker: Context
    ends: list[int] = attrs.field(factory=list, init=False)
    go_on: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    code: ResponseCode = attrs.field(default=ResponseCode.SUCCESS, init=False)
    fails: bool = attrs.field(default=False, init=False)
    served: list[tuple[int, int | None]] = attrs.field(factory=list, init=False)

    @hookimpl
    def confirm_append(self, appended: Appended) -> Awaitable[ResponseCode]:
        self.ends.append(appended.end)
        return self._confirm()

    async def _confirm(self) -> ResponseCode:
        await self.go_on.wait()
        if self.fails:
            raise ValueError("no slave is there")
        return self.code

    @hookimpl
    def request_served(self, request: Command, answer: Command | None) -> None:
        if request.code == RequestCode.SEND_MESSAGE_V2:
            self.served.append((request.opaque, None if answer is None else answer.code))


@asynccontextmanager
async def confirming(**settings: Any) -> AsyncIterator[tuple[Broker, Slaves, Peer]]:
    async with (
        running_broker(**enabled(slaves=Slaves), **settings) as broker,
        peer(broker.address) as client,
    ):
        (connection,) = broker.server.connections
        connection._turn.clock = lambda: 0.0  # of all connections: a turn ends with what there is, not by time
        slaves = broker.host.active["slaves"].instance
        slaves.go_on.set()
        await client.sent("orders", b"first")
        slaves.go_on = anyio.Event()
        slaves.ends.clear()
        slaves.served.clear()
        yield broker, slaves, client


async def send_all(client: Peer, answers: list[Command]) -> None:
    async def send(number: int) -> None:
        answers.append(await client.send("orders", b"%d" % number))

    async with anyio.create_task_group() as tasks:
        for number in range(MESSAGES):
            tasks.start_soon(send, number)


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT])
async def test_the_messages_of_a_turn_are_asked_about_once_and_answered_alike(code: ResponseCode) -> None:
    answers: list[Command] = []
    async with confirming() as (broker, slaves, client):
        slaves.code = code
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_all, client, answers)
            await until(lambda: broker.acknowledgements.unconfirmed == MESSAGES)
            await until(lambda: slaves.ends[-1:] == [broker.store.end])  # at the end of the turn
            assert not answers
            assert len(slaves.ends) < MESSAGES / 5  # a turn takes in what the socket has
            slaves.go_on.set()
        served = list(slaves.served)

    assert {answer.code for answer in answers} == {code}
    assert sorted(int(answer.ext["queueOffset"]) for answer in answers) == list(range(1, MESSAGES + 1))
    assert sorted({answer.remark for answer in answers if answer.remark}) == (
        [] if code == ResponseCode.SUCCESS else ["stored, but not confirmed by the other brokers in time"]
    )
    assert broker.acknowledgements.unconfirmed == 0
    assert sorted(served) == sorted((answer.opaque, code) for answer in answers)


async def test_who_does_not_wait_is_answered_while_others_do() -> None:
    async with confirming() as (_, slaves, client), anyio.create_task_group() as tasks:
        tasks.start_soon(client.sent, "orders")
        await until(lambda: bool(slaves.ends))

        assert (await client.send("orders", WAIT="false")).code == ResponseCode.SUCCESS

        slaves.go_on.set()


async def test_a_plugin_that_fails_is_named_to_each_who_waited() -> None:
    answers: list[Command] = []
    async with confirming() as (_, slaves, client):
        slaves.fails = True
        slaves.go_on.set()
        await send_all(client, answers)

    assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_ERROR}
    assert all("slaves" in answer.remark for answer in answers)


async def test_what_the_disk_has_waits_for_the_slaves_too() -> None:
    async with confirming(store__flush="sync") as (broker, slaves, client), anyio.create_task_group() as tasks:
        tasks.start_soon(client.sent, "orders", b"one")
        await until(lambda: bool(slaves.ends) and broker.store.durable_end == broker.store.end)
        assert broker.acknowledgements.unconfirmed == 1

        slaves.go_on.set()

    assert broker.acknowledgements.unconfirmed == 0
