"""What the kernel offers plugins beside hooks: a send's fields both ways, waiting for a queue, tables of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs
import pytest

from tests.kernel.enabling import enabled
from tests.plugins.peer import served
from verniermq.kernel import (
    Context,
    Declaration,
    NoConfig,
    PendingMessage,
    ResponseCode,
    concerns,
    hookimpl,
    requests,
)
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio


@attrs.define(eq=False)
class Echo:
    """Answers with what the request said."""

    declaration: ClassVar = Declaration(api=1, summary="Echoes.")
    config: NoConfig
    broker: Context

    @hookimpl
    @concerns(properties=("echo",))
    def before_append(self, message: PendingMessage) -> None:
        message.add_to_answer("sentBy", requests.producer_of(message)[1])
        if message.properties["echo"] == "stumble":
            raise RuntimeError("after it had said something")


async def test_a_plugin_sees_the_fields_of_a_send_and_adds_to_its_answer(tmp_path: Path) -> None:
    async with served(tmp_path, **enabled(echo=Echo)) as (_, client):
        plain = await client.sent("orders")
        echoed = await client.sent("orders", echo="yes")

        assert "sentBy" not in plain
        assert echoed["sentBy"] == "producers"
        assert echoed["queueOffset"] == "1"


async def test_what_a_plugin_added_before_it_failed_is_not_answered(tmp_path: Path) -> None:
    async with served(tmp_path, **enabled(echo=Echo)) as (_, client):
        answer = await client.send("orders", echo="stumble")

        assert answer.code == ResponseCode.SUCCESS
        assert "sentBy" not in answer.ext


async def test_waiting_for_a_queue_ends_with_the_message_that_was_waited_for(tmp_path: Path) -> None:
    arrived: list[int] = []
    async with served(tmp_path) as (broker, client), anyio.create_task_group() as tasks:

        async def wait_for(offset: int) -> None:
            await broker.held_pulls.arrival("orders", 2, offset)
            arrived.append(offset)

        for offset in (0, 2):
            tasks.start_soon(wait_for, offset)
        await anyio.lowlevel.checkpoint()
        seen = []
        for queue in (1, 2, 2, 2):
            await client.sent("orders", queue=queue)
            await anyio.lowlevel.checkpoint()
            seen.append(list(arrived))

        assert seen[0] == []
        assert seen[1] == [0]
        assert seen[3] == [0, 2]
        assert len(broker.held_pulls) == 0


async def test_a_wait_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, _):
        with anyio.move_on_after(0.01):
            await broker.held_pulls.arrival("orders", 0, 0)

        assert len(broker.held_pulls) == 0


class Tally:
    """A table in a format of its own: one number as text."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, data: Mapping[str, Any]) -> None:
        self.path.write_text(str(data["count"]))


async def test_a_plugins_table_may_have_a_format_of_its_own(tmp_path: Path) -> None:
    count = 1
    async with served(tmp_path, ManualClock()) as (broker, _):
        document = broker.documents.add(Tally(tmp_path / "tally"), lambda: {"count": count}, 0.0)
        document.touch()
        await document.saved()
        first = (tmp_path / "tally").read_text()
        count = 2
        document.touch()

    assert first == "1"
    assert (tmp_path / "tally").read_text() == "2"
