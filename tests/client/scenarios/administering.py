"""The administrator: F1, F2, and dead letters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.client.place import Place, eventually, numbered, until
from verniermq.client import Admin, Later, Message, PushConsumer, ReceivedMessage
from verniermq.client.errors import MessageNotFound, NoRoute
from verniermq.kernel import BadName


async def topics_are_created_changed_listed_and_deleted(place: Place) -> None:
    name = place.name("managed")

    async with Admin(namesrv=place.namesrv) as admin:
        await admin.create_topic(name, queues=4)
        created = await admin.topic(name)
        await admin.create_topic(name, queues=6)
        changed = await admin.topic(name)
        listed = await admin.topics()
        await admin.delete_topic(name)
        with pytest.raises(NoRoute):
            await admin.topic(name)
        with pytest.raises(BadName):
            await admin.create_topic("no spaces")

    assert (created.queues, changed.queues) == (4, 6)
    assert name in listed
    assert len(created.brokers) == 1


async def groups_are_created_listed_and_deleted(place: Place) -> None:
    name = place.name("managed-group")

    async with Admin(namesrv=place.namesrv) as admin:
        await admin.create_group(name, max_reconsume_times=3)
        with_it = await admin.groups()
        await admin.delete_group(name)
        without_it = await admin.groups()

    assert name in with_it
    assert name not in without_it


async def the_members_of_a_group_are_listed(place: Place) -> None:
    topic = await place.topic("members")
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv)
    consumer.subscribe(topic)
    consumer.on_message(print)

    async with Admin(namesrv=place.namesrv) as admin:
        async with consumer:
            during = await admin.members(consumer.group)
        after = await admin.members(consumer.group)

    assert during == [consumer.client_id]
    assert after == []


async def a_message_is_found_by_its_ids_and_keys(place: Place) -> None:
    topic = await place.topic("find")
    async with place.producer() as producer:
        result = await producer.send(Message(topic, b"needle", keys=["K1", "K2"]))
        await producer.send(Message(topic, b"hay", keys=["K3"]))

    async with Admin(namesrv=place.namesrv) as admin:
        by_offset = await admin.message(result.offset_message_id)
        by_key = await eventually(lambda: admin.messages_by_key(topic, "K2"))
        by_unique = await admin.message(result.message_id, topic)
        nothing = await admin.messages_by_key(topic, "K9")
        with pytest.raises(MessageNotFound, match="give the topic too"):
            await admin.message("no-such-id")

    assert [message.body for message in (by_offset, by_unique, *by_key)] == [b"needle"] * 3
    assert nothing == []


async def the_lag_of_a_group_is_counted(place: Place) -> None:
    topic = await place.topic("lag", queues=2)
    group = place.name("group")
    await place.send(topic, numbered(10))

    async with Admin(namesrv=place.namesrv) as admin:
        never_there = await admin.lag(group, topic)
        await admin.reset_offsets(group, topic, "last")
        at_the_end = await admin.lag(group, topic)
        await place.send(topic, numbered(3))
        behind = await admin.lag(group, topic)
        progress = await admin.progress(group, topic)

    assert (never_there, at_the_end, behind) == (10, 0, 3)
    assert sum(queue.max_offset for queue in progress.values()) == 13


async def a_running_group_goes_back_to_a_time(place: Place) -> None:
    topic = await place.topic("back", queues=1)
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, start="first")
    consumer.subscribe(topic)
    seen: list[bytes] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        seen.append(message.body)

    await place.send(topic, numbered(4))
    async with consumer, Admin(namesrv=place.namesrv) as admin:
        await until(lambda: len(seen) == 4)
        await admin.reset_offsets(consumer.group, topic, datetime.now(UTC) - timedelta(hours=1))
        await place.send(topic, [b"new"])
        await until(lambda: len(seen) >= 9)

    assert seen == [*numbered(4), *numbered(4), b"new"]


async def dead_letters_are_read_and_sent_again(place: Place) -> None:
    topic = await place.topic("letters")
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, start="first")
    consumer.subscribe(topic)
    seen: list[bytes] = []
    repaired = False

    @consumer.on_message
    async def take(message: ReceivedMessage) -> Later | None:
        if not repaired:
            return Later(delay_level=-1)
        seen.append(message.body)
        return None

    await place.send(topic, numbered(3), tags="T")
    async with consumer, Admin(namesrv=place.namesrv) as admin:
        letters = await eventually(lambda: admin.dead_letters(consumer.group), lambda found: len(found) == 3)
        repaired = True
        count = await admin.resend_dead_letters(consumer.group, keep=lambda letter: letter.body != b"1")
        await until(lambda: len(seen) == 2)
        nobody = await admin.dead_letters("group-that-never-failed")

    assert count == 2
    assert sorted(seen) == [b"0", b"2"]
    assert {letter.tags for letter in letters} == {"T"}
    assert nobody == []


async def brokers_and_clusters_are_listed(place: Place) -> None:
    async with Admin(namesrv=place.namesrv) as admin:
        brokers = await admin.brokers()
        clusters = await admin.clusters()
        (name,) = brokers
        info = await admin.broker_info(name)

    assert brokers[name][0] == place.broker
    assert [name] in clusters.values()
    assert info["brokerVersionDesc"]
