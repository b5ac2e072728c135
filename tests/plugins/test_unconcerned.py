"""What a plugin costs a message that does not concern it: nothing, as no line of it runs.

Counted rather than timed: every Python function that is called while plain messages are sent is looked at, and the
only plugins that may be among them are those that every message concerns (the key index, the figures for ``mqadmin``).
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

from tests.plugins.txn.peers import peer
from verniermq.kernel import Broker, Command, RequestCode
from verniermq.plugins.query.keys import ENTRIES
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

PLUGINS = Path(__file__).parents[2] / "plugins"
KINDS = ("schedule", "txn", "retry", "order", "filter", "reply", "pop", "flow", "retention", "sendhooks", "namesrv")
TURNS = 5


def plain_send(number: int) -> Command:
    ext = {
        "a": "senders", "b": "plain", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "g": "1", "h": "0",
        "i": f"TAGS\x01red\x02KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02", "j": "0",
    }  # fmt: skip
    return Command.request(RequestCode.SEND_MESSAGE_V2, ext, b"body")


async def calls_into_plugins(broker: Broker, messages: int) -> Counter[str]:
    """Function calls by plugin while ``messages`` messages come in ``TURNS`` chunks, until all of it has settled."""
    seen: Counter[str] = Counter()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PLUGINS):
                seen[path.relative_to(PLUGINS).parts[0].removesuffix(".py")] += 1

    async with peer(broker.address) as producer:
        await producer.send("plain", b"the topic is there")
        connection = producer.connection
        answered: list[Command | None] = []
        sys.setprofile(look)
        try:
            for _ in range(TURNS):
                for number in range(messages // TURNS):
                    connection.begin(plain_send(number), 10, lambda answer, error: answered.append(answer))
                await producer.send("plain", b"and everything before it is answered")
            broker.catch_up()
        finally:
            sys.setprofile(None)
        assert len(answered) == messages
        assert all(answer is not None and answer.code == 0 for answer in answered)
    return seen


async def test_no_line_of_a_plugin_runs_for_a_message_that_does_not_concern_it() -> None:
    # On a clock that stands, so that what plugins do now and then is not counted, however long the messages take.
    async with running_broker(clock=ManualClock()) as broker:
        few = await calls_into_plugins(broker, 10 * TURNS)
        many = await calls_into_plugins(broker, 100 * TURNS)

    # Some look at each turn of the loop, whatever came in it; none may look at each message.
    growing = {name for name in many if many[name] - few[name] > 45 * TURNS}
    assert growing <= {"query", "admin"}, (few, many)
    if ENTRIES is None:  # what is compiled is no Python function
        assert "query" in growing, "the counting sees what does concern a message"
    for name in KINDS:
        assert many[name] <= few[name] + 2 * TURNS, (name, few, many)


async def test_one_that_is_concerned_is_seen() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        await producer.send("plain", b"x")
        seen: Counter[str] = Counter()

        def look(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and Path(frame.f_code.co_filename).is_relative_to(PLUGINS / "schedule"):
                seen["schedule"] += 1

        sys.setprofile(look)
        try:
            await producer.send("plain", b"later", properties={"DELAY": "1"})
        finally:
            sys.setprofile(None)

    assert seen["schedule"] > 0
