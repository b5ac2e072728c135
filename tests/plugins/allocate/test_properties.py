"""What holds for any topic and any group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.enabling import client_context
from verniermq.kernel import MessageQueue, hookspecs
from verniermq.plugins.allocate import Config, Plugin
from verniermq.plugins.allocate.consistent_hash import ConsistentHash, Ring, queue_key
from verniermq.plugins.allocate.machine_room_nearby import RoomsByPrefix
from verniermq.plugins.allocate.registry import StrategyTable, rocketmq_name
from verniermq.testing import check_allocator, running_broker

REGISTRY = StrategyTable(machine_rooms=frozenset({"r0", "r1", "r2"}), resolver=RoomsByPrefix("@"))


@pytest.mark.parametrize("name", ["AVG", "averagely", "AVG_BY_CIRCLE", "circle"])
def test_the_equal_strategies_keep_the_contract(name: str) -> None:
    strategy = REGISTRY.find(name)

    assert strategy is not None
    check_allocator(strategy)


def test_consistent_hash_keeps_the_contract_but_for_balance() -> None:
    check_allocator(ConsistentHash(), balanced=False)


def test_machine_room_keeps_the_contract_when_all_rooms_are_chosen() -> None:
    strategy = REGISTRY.find("MACHINE_ROOM")

    assert strategy is not None
    check_allocator(strategy, broker_name="r{}@broker")


@pytest.mark.parametrize("inner", ["AVG", "circle", "CONSISTENT_HASH"])
def test_nearby_keeps_the_contract_over_any_inner_strategy(inner: str) -> None:
    strategy = REGISTRY.find(f"MACHINE_ROOM_NEARBY-{inner}")

    assert strategy is not None
    # Client 0 lives where broker 0 is, client 1 where broker 1 is, and so on: most rooms are lopsided.
    check_allocator(strategy, balanced=False, broker_name="r{}@broker", client_id="r{}@client")


def test_the_contract_notices_a_gap_and_an_overlap() -> None:
    with pytest.raises(AssertionError, match="nobody reads"):
        check_allocator(lambda me, queues, clients: list(queues[:1]) if me == clients[0] else [])
    with pytest.raises(AssertionError, match="more than one client"):
        check_allocator(lambda me, queues, clients: list(queues) if me in clients else [])


@given(
    clients=st.sets(st.from_regex(r"10\.\d{1,3}\.\d{1,3}\.\d{1,3}@\d{1,5}", fullmatch=True), min_size=2, max_size=20),
    queues=st.integers(1, 300),
    data=st.data(),
)
def test_when_a_client_leaves_only_its_own_queues_move(clients: set[str], queues: int, data: st.DataObject) -> None:
    leaver = data.draw(st.sampled_from(sorted(clients)))
    keys = [queue_key(MessageQueue("orders", "broker-a", number)) for number in range(queues)]

    before = Ring.of(tuple(sorted(clients)), 10)
    after = Ring.of(tuple(sorted(clients - {leaver})), 10)

    moved = [key for key in keys if before.owner(key) != after.owner(key)]
    assert all(before.owner(key) == leaver for key in moved)


def test_a_leaver_moves_about_its_share_of_the_queues() -> None:
    members = [f"10.0.0.{number}@{1000 + number}" for number in range(10)]
    keys = [queue_key(MessageQueue("orders", "broker-a", number)) for number in range(5000)]
    before = Ring.of(tuple(members), 10)

    moved_shares = []
    for leaver in members:
        after = Ring.of(tuple(member for member in members if member != leaver), 10)
        moved_shares.append(sum(before.owner(key) != after.owner(key) for key in keys) / len(keys))

    # Every queue belongs to one leaver, so the mean is 1/n exactly; 10 points each keep the worst within 1/n more.
    assert sum(moved_shares) == pytest.approx(1.0)
    assert max(moved_shares) <= 2 / len(members)


def test_a_plugin_answers_for_its_names_and_leaves_the_others() -> None:
    plugin = Plugin(Config(), client_context())
    queues = [MessageQueue("orders", "broker-a", number) for number in range(4)]

    assert plugin.allocate_queues("AVG", "b", queues, ["a", "b"]) == queues[2:]
    assert plugin.allocate_queues("circle", "b", queues, ["a", "b"]) == queues[1::2]
    assert plugin.allocate_queues("somebody-else", "b", queues, ["a", "b"]) is None
    assert plugin.allocate_queues("MACHINE_ROOM_NEARBY-somebody-else", "b", queues, ["a", "b"]) is None


def test_friendly_names_have_rocketmq_names() -> None:
    assert rocketmq_name("averagely") == "AVG"
    assert rocketmq_name("machine_room_nearby") == "MACHINE_ROOM_NEARBY-AVG"
    assert rocketmq_name("machine_room_nearby-circle") == "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"
    assert rocketmq_name("CONSISTENT_HASH") == "CONSISTENT_HASH"


@pytest.mark.anyio
async def test_a_host_finds_the_strategy_with_its_settings() -> None:
    enable = ["default", "verniermq.plugins.allocate:Plugin"]
    queues = [MessageQueue("orders", broker, 0) for broker in ("east@a", "west@b")]

    async with running_broker(plugins__enable=enable, plugins__allocate__machine_rooms=["west"]) as broker:
        west = broker.host.ask(hookspecs.allocate_queues, "MACHINE_ROOM", "billing", "me", queues, ["me"])
        unknown = broker.host.ask(hookspecs.allocate_queues, "somebody-else", "billing", "me", queues, ["me"])

    assert west == queues[1:]
    assert unknown is None
