"""Our allocation strategies beside Apache's own classes, over thousands of random topics and groups."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.interop.allocate.build import java_program
from verniermq.kernel import MessageQueue
from verniermq.plugins.allocate.machine_room_nearby import RoomsByPrefix
from verniermq.plugins.allocate.registry import StrategyTable
from verniermq.plugins.allocate.strategy import AllocationError

CASES = 6000
SEED = 20240607

INNER = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM")
STRATEGIES = (*INNER, "CONFIG", *(f"MACHINE_ROOM_NEARBY-{inner}" for inner in INNER))

Case = dict[str, Any]


def cases() -> Iterator[Case]:
    random = Random(SEED)
    for number in range(CASES):
        yield random_case(random, STRATEGIES[number % len(STRATEGIES)])


def random_case(random: Random, strategy: str) -> Case:
    """A topic and a group; now and then with something that should not occur."""
    rooms = [f"room{number}" for number in range(random.randrange(1, 5))]
    separator = "@" if strategy.endswith("MACHINE_ROOM") and "NEARBY" not in strategy else "-"
    if strategy == "MACHINE_ROOM_NEARBY-MACHINE_ROOM":
        separator = "-x@"
    topic = random.choice(["TopicTest", "%RETRY%group", "订单", "orders_2"])
    letters = random.choices("abcdé", k=random.randrange(1, 6))
    brokers = {f"{random.choice(rooms)}{separator}broker{letter}" for letter in letters}
    if random.random() < 0.05:
        brokers.add(random.choice(["broker", "a@b@c", "room0@", "room0@a@", "@a", "-a", "room0-b@c"]))
    queues = sorted((topic, broker, number) for broker in brokers for number in range(random.randrange(0, 9)))
    clients = sorted(
        f"{random.choice(rooms)}-10.0.{random.randrange(3)}.{random.randrange(256)}@{random.randrange(70000)}"
        for _ in range(random.choice([1, 2, 3, random.randrange(0, 12), random.randrange(1, 40)]))
    )
    if random.random() < 0.05:
        clients.append(random.choice(["nowhere", *clients[:1]]))
        clients.sort()
    client = random.choice(clients) if clients and random.random() < 0.95 else random.choice(["", "room0-stranger"])
    return {
        "strategy": strategy,
        "client": client,
        "queues": queues,
        "clients": clients,
        "virtual_nodes": random.choice([10, 10, 1, 3, 160]),
        "rooms": [room for room in [*rooms, "room0-x"] if random.random() < 0.6],
        "fixed": random.sample(queues, min(len(queues), 3)),
    }


def ours(case: Case) -> list[list[Any]] | None:
    """The queues in the form of the answer; ``None`` for an error."""
    strategy = StrategyTable(
        virtual_nodes=case["virtual_nodes"],
        machine_rooms=frozenset(case["rooms"]),
        resolver=RoomsByPrefix("-"),
        fixed_queues=tuple(f"{topic}@{broker}:{number}" for topic, broker, number in case["fixed"]),
    ).find(case["strategy"])
    assert strategy is not None
    try:
        allocated = strategy(case["client"], [MessageQueue(*queue) for queue in case["queues"]], case["clients"])
    except AllocationError:
        return None
    return [[queue.topic, queue.broker_name, queue.queue_id] for queue in allocated]


def test_every_allocation_equals_that_of_apaches_class() -> None:
    asked = list(cases())

    lines = "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in asked)
    run = subprocess.run(
        java_program("Allocate"), input=lines, text=True, encoding="utf-8", capture_output=True, check=True, timeout=100
    )
    answers = [json.loads(line) for line in run.stdout.splitlines()]

    assert len(answers) == CASES
    kinds: Counter[str] = Counter()
    for case, answer in zip(asked, answers, strict=True):
        assert answer["name"] == case["strategy"]
        assert ours(case) == answer.get("queues"), f"{case} → Apache answers {answer}"
        kinds["error" if "error" in answer else "some" if answer["queues"] else "none"] += 1
    # The comparison means something only if it saw enough of each kind of answer.
    assert kinds["some"] > CASES / 2
    assert kinds["error"] > 100
    assert kinds["none"] > 100
