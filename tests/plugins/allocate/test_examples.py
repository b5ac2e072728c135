"""The worked examples of RocketMQ's strategies, number by number."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from verniermq.kernel import ConfigError, MessageQueue
from verniermq.plugins.allocate import Room
from verniermq.plugins.allocate.averagely import averagely
from verniermq.plugins.allocate.by_config import ByConfig, parse_queue
from verniermq.plugins.allocate.circle import circle
from verniermq.plugins.allocate.consistent_hash import ConsistentHash, Ring, queue_key, ring_hash
from verniermq.plugins.allocate.machine_room import MachineRoom, room_of_broker
from verniermq.plugins.allocate.machine_room_nearby import (
    MachineRoomNearby,
    RoomsByPattern,
    RoomsByPrefix,
)
from verniermq.plugins.allocate.strategy import AllocationError, Strategy

THREE = ("10.0.0.1@1001", "10.0.0.2@1002", "10.0.0.3@1003")


def queues_of(broker: str, count: int) -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, number) for number in range(count)]


def numbers(strategy: Strategy, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy(client, queues, clients)] for client in clients]


def labels(queues: Sequence[MessageQueue]) -> str:
    """``room1@broker-a`` queue 3 → ``a3``."""
    return " ".join(f"{queue.broker_name[-1]}{queue.queue_id}" for queue in queues)


@pytest.mark.parametrize(
    ("queues", "clients", "blocks", "dealt"),
    [
        (8, 3, ["0-2", "3-5", "6-7"], [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (10, 4, ["0-2", "3-5", "6-7", "8-9"], [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
        (
            16,
            5,
            ["0-3", "4-6", "7-9", "10-12", "13-15"],
            [[0, 5, 10, 15], [1, 6, 11], [2, 7, 12], [3, 8, 13], [4, 9, 14]],
        ),
        (9, 2, ["0-4", "5-8"], [[0, 2, 4, 6, 8], [1, 3, 5, 7]]),
        (4, 4, ["0-0", "1-1", "2-2", "3-3"], [[0], [1], [2], [3]]),
        (2, 3, ["0-0", "1-1", ""], [[0], [1], []]),
        (1, 2, ["0-0", ""], [[0], []]),
    ],
)
def test_blocks_and_dealing_give_the_documented_numbers(
    queues: int, clients: int, blocks: list[str], dealt: list[list[int]]
) -> None:
    group = [f"c{number}" for number in range(clients)]
    expected = []
    for block in blocks:
        first, _, last = block.partition("-")
        expected.append(list(range(int(first), int(last) + 1)) if block else [])

    assert numbers(averagely, queues_of("broker-a", queues), group) == expected
    assert numbers(circle, queues_of("broker-a", queues), group) == dealt


def test_two_brokers_are_shared_in_the_order_of_text() -> None:
    queues = queues_of("broker-a", 4) + queues_of("broker-b", 4)
    clients = sorted(["10.0.0.1@7", "10.0.0.2@9", "10.0.0.10@1"])

    assert clients == ["10.0.0.10@1", "10.0.0.1@7", "10.0.0.2@9"]
    assert [labels(averagely(me, queues, clients)) for me in clients] == ["a0 a1 a2", "a3 b0 b1", "b2 b3"]
    assert [labels(circle(me, queues, clients)) for me in clients] == ["a0 a3 b2", "a1 b0 b3", "a2 b1"]


# --- consistent hash -----------------------------------------------------------------------


def test_the_hash_is_the_first_four_bytes_of_md5() -> None:
    assert ring_hash("10.0.0.1@1001-0") == 1664424904
    assert [ring_hash(queue_key(queue)) for queue in queues_of("broker-a", 8)] == [
        1987926524, 4291349817, 853506239, 3652785994, 3819253357, 3264541832, 2650622136, 4171190878,
    ]  # fmt: skip


def test_the_ring_of_three_clients_has_the_documented_points() -> None:
    documented = (
        "29445668:3 158038866:1 317182631:2 390553594:1 417398784:3 1089019578:2 1375579841:2 1631452046:3 "
        "1664424904:1 1852266156:1 1995473245:1 2022794893:3 2066753455:2 2184926170:2 2219672338:1 "
        "2347162731:2 2720860297:3 2738000990:2 2741933939:1 2842655145:1 3057240310:2 3373906669:2 "
        "3545810047:3 3569771908:3 3595341041:3 3622072905:1 3625934661:2 3711975004:3 4119415163:1 4223000746:3"
    )

    ring = Ring.of(THREE, 10)

    points = zip(ring.points, ring.owners, strict=True)
    assert " ".join(f"{point}:{THREE.index(owner) + 1}" for point, owner in points) == documented


@pytest.mark.parametrize(
    ("clients", "virtual_nodes", "expected"),
    [
        (3, 10, [[0, 4], [2, 5], [1, 3, 6, 7]]),
        (2, 10, [[0, 1, 3, 4, 7], [2, 5, 6]]),
        (3, 1, [[], [0, 5, 6], [1, 2, 3, 4, 7]]),
    ],
)
def test_consistent_hash_gives_the_documented_owners(
    clients: int, virtual_nodes: int, expected: list[list[int]]
) -> None:
    assert numbers(ConsistentHash(virtual_nodes), queues_of("broker-a", 8), THREE[:clients]) == expected


def test_consistent_hash_over_two_brokers_gives_the_documented_owners() -> None:
    queues = queues_of("broker-a", 4) + queues_of("broker-b", 4)

    shares = [labels(ConsistentHash()(me, queues, THREE)) for me in THREE]

    assert shares == ["a0 b2", "a2 b0 b1", "a1 a3 b3"]


def test_a_ring_without_points_owns_nothing() -> None:
    assert ConsistentHash(0)(THREE[0], queues_of("broker-a", 4), THREE) == []


# --- rooms ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rooms", "expected"),
    [
        ({"room1"}, ["a0 a3", "a1", "a2"]),
        ({"room1", "room2"}, ["a0 a1 b2", "a2 a3 b3", "b0 b1"]),
        (set(), ["", "", ""]),
    ],
)
def test_machine_room_hands_out_only_its_rooms(rooms: set[str], expected: list[str]) -> None:
    queues = [
        *queues_of("room1@broker-a", 4),
        *queues_of("room2@broker-b", 4),
        *queues_of("room3@broker-c", 4),
    ]
    clients = ["c0", "c1", "c2"]

    assert [labels(MachineRoom(frozenset(rooms))(me, queues, clients)) for me in clients] == expected


@pytest.mark.parametrize(
    ("broker", "room"),
    [("room1@a", "room1"), ("a", None), ("room1@a@b", None), ("room1@a@", "room1"), ("room1@", None), ("@a", "")],
)
def test_a_broker_names_its_room_before_one_at_sign(broker: str, room: str | None) -> None:
    assert room_of_broker(broker) == room


def nearby(clients: list[str]) -> list[str]:
    queues = [queue for room in (1, 2, 3) for queue in queues_of(f"r{room}-broker-{room}", 4)]
    strategy = MachineRoomNearby(averagely, RoomsByPrefix("-"))
    return [labels(strategy(me, queues, clients)) for me in clients]


def test_a_room_without_a_client_is_shared_by_all() -> None:
    assert nearby(["r1-c0", "r1-c1", "r2-c0"]) == ["10 11 30 31", "12 13 32", "20 21 22 23 33"]


def test_a_room_with_a_client_keeps_its_queues() -> None:
    assert nearby(["r1-c0", "r1-c1", "r2-c0", "r3-c0", "r3-c1"]) == [
        "10 11", "12 13", "20 21 22 23", "30 31", "32 33",
    ]  # fmt: skip


def test_a_client_in_a_room_without_queues_gets_only_orphans() -> None:
    assert nearby(["r1-c0", "r2-c0", "r3-c0", "r9-c0"])[-1] == ""


def test_rooms_can_be_told_by_patterns() -> None:
    rooms = RoomsByPattern(
        {"east": Room(brokers=("broker-a",), clients=("10.1.*",)), "west": Room(("broker-?",), ("*",))}
    )

    assert rooms.room_of_queue(MessageQueue("t", "broker-a", 0)) == "east"
    assert rooms.room_of_queue(MessageQueue("t", "broker-b", 0)) == "west"
    assert rooms.room_of_queue(MessageQueue("t", "other", 0)) == ""
    assert rooms.room_of_client("10.1.0.4@77") == "east"


@pytest.mark.parametrize(("broker", "client"), [("nowhere", "r1-c0"), ("r1-a", "nowhere")])
def test_something_without_a_room_is_an_error_that_names_it(broker: str, client: str) -> None:
    strategy = MachineRoomNearby(averagely, RoomsByPrefix("-"))

    with pytest.raises(AllocationError, match="'nowhere'"):
        strategy(client, queues_of(broker, 2), [client])


# --- by hand, and the common check ---------------------------------------------------------


def test_by_config_answers_with_its_list_whoever_asks() -> None:
    fixed = ByConfig((parse_queue("orders@room@broker-a:3"),))

    assert fixed("", [], []) == [MessageQueue("orders", "room@broker-a", 3)]


@pytest.mark.parametrize("text", ["", "orders", "orders@broker", "orders@broker:", "@b:1", "orders@b:-1", "orders@b:x"])
def test_what_names_no_queue_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="topic@broker:number"):
        parse_queue(text)


@pytest.mark.parametrize(
    "strategy",
    [averagely, circle, ConsistentHash(), MachineRoom(frozenset({"r"})), MachineRoomNearby(averagely, RoomsByPrefix())],
)
def test_empty_arguments_are_errors_and_a_stranger_gets_nothing(strategy: Strategy) -> None:
    queues = queues_of("r-a", 2)

    with pytest.raises(AllocationError, match="client id is empty"):
        strategy("", queues, ["r-c"])
    with pytest.raises(AllocationError, match="no readable queue"):
        strategy("r-c", [], ["r-c"])
    with pytest.raises(AllocationError, match="no member"):
        strategy("r-c", queues, [])
    assert strategy("r-stranger", queues, ["r-c"]) == []
