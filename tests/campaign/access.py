"""Access control: an account with one topic and one group of its own tries everything, and gets at nothing else.

Requests are random, about its own things and others' in any mixture, signed rightly, wrongly, or not at all. Whether
one passed is not asked of the broker's answer: others' topics, groups and offsets have to be as they were, and no
answer may carry what only others may read. ``tests/plugins/acl/test_matrix.py`` has the matrix of what each code takes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import attrs
import orjson

from tests.campaign.fuzz import BODIES, Fuzzer
from tests.campaign.outcome import Kind, Outcome
from tests.plugins.acl.test_acl import signed
from verniermq.kernel import Broker, Command, Connection, RequestCode, ResponseCode, connect, format_properties
from verniermq.kernel.errors import RemotingError
from verniermq.testing import running_broker

REQUESTS = 3000
AT_ONCE = 100
ANSWER_SECONDS = 3.0
"""Some requests wait for messages, or for another client; that one knocked is enough."""
SECRET = "a-long-secret"
HIDDEN = b"for others only"
TEXTS = ("mine", "theirs", "mineG", "theirG", "%RETRY%theirG", "%RETRY%mineG", "%DLQ%theirG", "theirG_theirs", "TBW102")


def accounts(chance: random.Random, *, is_admin: bool) -> dict[str, Any]:
    rights = ("PUB", "SUB", "PUB|SUB", "DENY")
    return {
        "root": {"secret": SECRET, "admin": True},
        "me": {
            "secret": SECRET, "topics": {"mine": chance.choice(rights)}, "groups": {"mineG": chance.choice(rights)},
            "default_topic": "DENY", "default_group": "DENY", "admin": is_admin,
        },
    }  # fmt: skip


def bodies() -> tuple[bytes, ...]:
    """Those of the fuzzer, about our own things and about others'."""
    changed = [
        body.replace(b"orders", topic).replace(b"billing", group)
        for body in BODIES
        for topic in (b"mine", b"theirs")
        for group in (b"mineG", b"theirG")
    ]
    return tuple(dict.fromkeys(changed))


@attrs.define
class Intruder:
    """Signs rightly, with another's name, with a wrong secret, or not at all."""

    fuzzer: Fuzzer
    chance: random.Random
    outcome: Outcome

    def request(self) -> Command:
        command = self.fuzzer.command()
        command.flag = 0
        how = self.chance.random()
        if how < 0.8:
            return signed(command, "me", SECRET)
        if how < 0.87:
            return signed(command, "root", "another-long-secret")
        if how < 0.94:
            return signed(command, "nobody", SECRET)
        return command

    async def ask(self, connection: Connection) -> None:
        command = self.request()
        try:
            answer = await connection.request(command, ANSWER_SECONDS)
        except RemotingError:
            self.outcome.notes["without an answer"] += 1
            return
        self.outcome.checked += 1
        self.outcome.notes["granted"] += answer.code == ResponseCode.SUCCESS
        body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
        if HIDDEN in body or HIDDEN.decode() in answer.remark:
            self.outcome.fail("passed", f"{command!r} {command.ext} was answered with what others wrote")


async def _send(connection: Connection, topic: str, properties: dict[str, str], flags: int = 0) -> None:
    fields = {
        "a": "theirG", "b": topic, "c": "TBW102", "d": "2", "e": "0", "f": str(flags), "g": "1", "h": "0",
        "i": format_properties(properties),
    }  # fmt: skip
    command = Command.request(RequestCode.SEND_MESSAGE_V2, fields, HIDDEN if topic == "theirs" else b"mine")
    answer = await connection.request(signed(command, "root", SECRET), 30)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def prepare(broker: Broker) -> None:
    """Messages and an open transaction of somebody else."""
    connection = await connect(broker.address)
    for topic in ("mine", "theirs"):
        for number in range(5):
            await _send(connection, topic, {"KEYS": f"k{number}"})
        await _send(connection, topic, {"TRAN_MSG": "true", "PGROUP": "theirG"}, 4)
    fields = {"consumerGroup": "theirG", "topic": "theirs", "queueId": "0", "commitOffset": "3"}
    commit = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert (await connection.request(signed(commit, "root", SECRET), 30)).code == ResponseCode.SUCCESS
    group = Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"theirG"}')
    assert (await connection.request(signed(group, "root", SECRET), 30)).code == ResponseCode.SUCCESS
    connection.close()


def of_others(broker: Broker) -> dict[str, Any]:
    """Everything that must not change, as it is now."""
    topics = orjson.loads(orjson.dumps(broker.topics.as_json(), option=orjson.OPT_NON_STR_KEYS))["topicConfigTable"]
    queues = {
        f"{queue.topic}/{queue.queue_id}": queue.max_offset
        for queue in broker.store.queues()
        if "their" in queue.topic and not queue.topic.startswith("%")
    }
    return {
        "topics": {name: topic for name, topic in topics.items() if "mine" not in name},
        "queues": queues,
        "offsets": dict(broker.offsets.queues("theirG", "theirs")),
        "groups": "theirG" in broker.groups,
    }


async def intrude(
    seed: int, folder: Path, requests: int = REQUESTS, is_admin: bool = False, codes: tuple[int, ...] = ()
) -> Outcome:
    """``is_admin``: the control, of somebody who may do everything; ``codes``: only these, not all."""
    chance = random.Random(seed)
    outcome = Outcome()
    enabled = {
        "plugins__enable": ["default", "acl", "ha", "spark"],
        "plugins__acl__accounts": accounts(chance, is_admin=is_admin),
    }
    async with running_broker(folder / "store", log__level="error", **enabled) as broker:
        await prepare(broker)
        before = of_others(broker)
        fuzzer = Fuzzer(random.Random(chance.random()), list(codes or sorted(broker.handlers)), TEXTS, bodies())
        intruder = Intruder(fuzzer, chance, outcome)
        for _ in range(requests // AT_ONCE):
            connection = await connect(broker.address)
            async with anyio.create_task_group() as tasks:
                for _ in range(AT_ONCE):
                    tasks.start_soon(intruder.ask, connection)
            connection.close()
        after = of_others(broker)
        for what, was in before.items():
            outcome.expect(
                after[what] == was, "passed", f"seed {seed}: {what} of others: {was}, now {after[what]}"[:600]
            )
    return outcome


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(intrude, seed, folder)


KIND = Kind(
    "access",
    "requests",
    "An account with rights on one topic and one group gets at nothing else, whatever it asks.",
    run,
)
