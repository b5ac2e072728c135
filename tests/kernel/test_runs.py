"""A plain batch, stored as a run, leaves the bytes and the events that the same messages leave one by one."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from itertools import groupby
from operator import mul
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel import frames
from tests.kernel.commitlog.stores import BORN, abandon, open_store
from tests.kernel.pulling import Waiting, until
from tests.kernel.test_lane import meet
from tests.kernel.twins import twin
from tests.plugins.peer import peer
from verniermq.contrib.spark.marks import Marks
from verniermq.kernel import (
    DispatchEvent,
    MessageFilter,
    PendingMessage,
    RequestCode,
    Run,
    decode_records,
    java_hash,
    pack_host,
    parse_properties,
    parts_of,
    sizes_of,
)
from verniermq.kernel.dispatch.run import Dispatched, count_parts, dispatched
from verniermq.kernel.errors import MessageIllegal, RequestRefused
from verniermq.kernel.handlers import send
from verniermq.kernel.handlers.longpoll import HeldPull
from verniermq.kernel.handlers.plainbatch import Columns, PlainTexts, split
from verniermq.plugins.query.keys import key_hash, keys_of, keys_of_run, topic_hash
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

V6 = pack_host("2001:db8::5", 65535)


def fields_of(event: DispatchEvent) -> dict[str, Any]:
    names = [name for kind in type(event).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(event, name) for name in names}


# --- reading -------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        b"UNIQ_KEY\x01", b"KEYS\x01", b"TAGS\x01", b"\x01", b"\x02", b"abc", b"7F0000011267000018B4AAC247B70001",
        "ü".encode(), b"\xff", b" ", b"DELAY\x011\x02", b"UNIQ_KEY\x01U1\x02", b"KEYS\x01k1 k2\x02", b"TAGS\x01t\x02",
    ]
)  # fmt: skip
PAIRS = st.sampled_from(
    [b"KEYS\x01k1  k2\x02", b"TAGS\x01t\x02", "A\x01ü\x02".encode(), b"KEYS\x01\x02", b"\x02", b"B\x02"]
)
PLAIN = st.builds(
    lambda before, unique, after: b"".join((*before, b"UNIQ_KEY\x01" + unique + b"\x02", *after)),
    st.lists(PAIRS, max_size=2),
    st.sampled_from([b"U1", b"7F0000011267000018B4AAC247B70001", b"a\x01b"]),
    st.lists(PAIRS, max_size=2),
)
TEXTS = st.one_of(PLAIN, PLAIN, st.lists(PIECES, max_size=7).map(b"".join))
ELEMENTS = st.builds(frames.element, st.binary(max_size=8), TEXTS, st.sampled_from([0, 5, -1, 2**31 - 1]))
DAMAGE = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=2)


def damaged(elements: list[bytes], damage: list[tuple[int, int]]) -> bytes:
    data = bytearray(b"".join(elements))
    for place, value in damage:
        if place < len(data):
            data[place] = value
    return bytes(data)


async def test_what_is_read_as_columns_is_what_is_read_message_by_message() -> None:
    async with running_broker() as broker:
        handler = broker._send
        texts = PlainTexts(lambda: broker.host.concerned_properties)
        plain = 0

        @given(st.builds(damaged, st.lists(st.builds(mul, ELEMENTS, st.integers(1, 3)), max_size=4), DAMAGE))
        @settings(max_examples=800, deadline=None)
        def check(data: bytes) -> None:
            nonlocal plain
            columns = split(data, texts)
            if columns is None:
                return  # read message by message, then
            plain += 1
            messages = list(handler._split(PendingMessage("T", 0, data, {})))
            *lists, rests = columns
            assert rests == [rest for rest, _ in groupby(map(without_keys, columns[2]))]
            for message, (body, flag, tail, code, unique, keys) in zip(messages, zip(*lists, strict=True), strict=True):
                assert (message.body, message.flag) == (body, flag)
                assert message.properties_text == tail[2:].decode()
                assert struct.unpack(">H", tail[:2]) == (len(tail) - 2,)
                properties = message.properties
                assert broker.host.concerned_properties.isdisjoint(properties)
                assert properties["UNIQ_KEY"] == unique.decode()
                assert properties.get("KEYS", "") == keys.decode()
                assert (java_hash(properties["TAGS"]) if "TAGS" in properties else 0) == code

        check()
        assert plain > 0


@pytest.mark.parametrize("second", [b"UNIQ_KEY\x01U12", b"UNIQ_KEY\x01\xc3\xbc\x02"], ids=["not ended", "not ASCII"])
def test_what_looks_like_the_message_before_is_read_as_carefully(second: bytes) -> None:
    texts, first = PlainTexts(frozenset), b"UNIQ_KEY\x01U1\x02"
    assert len(second) == len(first)
    assert split(frames.element(b"", first) * 2, texts) is not None
    assert split(frames.element(b"", first) + frames.element(b"", second), texts) is None


def test_a_batch_with_what_is_cut_out_is_not_plain_while_a_plugin_wants_to_see_it() -> None:
    data = frames.element(b"x", b"UNIQ_KEY\x01U1\x02KEYS\x01k\x02")
    wanted = [frozenset[str]()]
    texts = PlainTexts(lambda: wanted[0])

    assert split(data, texts) is not None
    for name in ("KEYS", "UNIQ_KEY"):
        wanted[0] = frozenset({name})
        assert split(data, texts) is None
    wanted[0] = frozenset({"other"})
    assert split(data, texts) is not None


def test_a_text_is_looked_at_again_when_plugins_want_to_see_others() -> None:
    data = frames.element(b"x", b"UNIQ_KEY\x01U1\x02colour\x01red\x02")
    wanted = [frozenset[str]()]
    texts = PlainTexts(lambda: wanted[0])

    assert split(data, texts) is not None
    wanted[0] = frozenset({"colour"})
    assert split(data, texts) is None


def test_more_messages_than_are_read_at_once_are_read_in_steps() -> None:
    data = frames.element(b"x", b"UNIQ_KEY\x01U1\x02") * 10
    texts = PlainTexts(frozenset)

    assert split(data, texts, most=10) is not None
    assert split(data, texts, most=9) is None


def without_keys(tail: bytes) -> bytes:
    pairs = tail[2:].split(b"\x02")
    for name in (b"UNIQ_KEY\x01", b"KEYS\x01"):
        first = next((pair for pair in pairs if pair.startswith(name)), None)
        if first is not None:
            pairs.remove(first)
    return b"\x02".join(pairs)


# --- storing -------------------------------------------------------------------------------


def columns_of(count: int, chance: random.Random) -> Columns:
    data = b"".join(
        frames.element(chance.randbytes(chance.randrange(300)), frames.plain_properties(i, chance).encode(), i - 3)
        for i in range(count)
    )
    columns = split(data, PlainTexts(frozenset))
    assert columns is not None
    return columns


@pytest.mark.parametrize("store_host", [pack_host("10.0.0.5", 10911), V6])
@pytest.mark.parametrize("born_host", [BORN, V6])
@pytest.mark.parametrize("topic", ["T1", "a-topic-" * 20])
def test_a_run_leaves_what_its_messages_leave_one_by_one(
    tmp_path: Path, store_host: bytes, born_host: bytes, topic: str
) -> None:
    chance = random.Random(7)
    run_store = open_store(tmp_path / "run", host=store_host)
    one_store = open_store(tmp_path / "one", host=store_host)
    told: dict[str, list[Any]] = {"run": [], "one": []}
    run_store.listeners.append(lambda events: told["run"].extend(map(fields_of, events)))
    one_store.listeners.append(lambda events: told["one"].extend(map(fields_of, events)))

    for number in range(40):
        columns = columns_of(chance.randrange(1, 12), chance)
        queue, flag = number % 3, chance.choice([0, 1, 0x31])
        run = run_store.appender.append_run(
            topic, queue, columns, sys_flag=flag, born_timestamp=number, born_host=born_host, reconsume_times=number % 2
        )
        messages = [
            PendingMessage(topic, queue, body, parse_properties(text := tail[2:].decode()), text, own, flag, number,
                           born_host, number % 2)
            for body, own, tail in zip(*columns[:3], strict=True)
        ]  # fmt: skip
        appended = one_store.append_batch(messages)
        assert run.message_ids == ",".join(one.message_id for one in appended)
        assert list(map(fields_of, run)) == list(map(fields_of, appended))  # type: ignore[arg-type]
        hashes = [(key_hash(topic_hash(topic), key), one.commit_log_offset, one.store_timestamp)
                  for one, message in zip(appended, messages, strict=True)
                  for key in keys_of(message.properties)]  # fmt: skip
        assert keys_of_run(run) == hashes
        run_store.dispatch()
        one_store.dispatch()

    assert told["run"] == told["one"]
    assert run_store.end == one_store.end
    for store in (run_store, one_store):
        store._dispatcher.write_now()
    files = [path.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("0*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert (tmp_path / "run" / path).read_bytes() == (tmp_path / "one" / path).read_bytes(), path
    abandon(run_store)
    abandon(one_store)


@pytest.mark.parametrize("wrong", [{"born_timestamp": 2**63}, {"reconsume_times": 2**31}, {"sys_flag": 2**40}])
def test_a_run_that_does_not_fit_into_records_leaves_nothing(tmp_path: Path, wrong: dict[str, int]) -> None:
    store = open_store(tmp_path)
    fields: dict[str, Any] = {
        "sys_flag": 0, "born_timestamp": 0, "born_host": BORN, "reconsume_times": 0, **wrong
    }  # fmt: skip

    with pytest.raises(MessageIllegal, match="does not fit into a record"):
        store.appender.append_run("T", 0, columns_of(2, random.Random(1)), **fields)

    assert store.end == 0
    assert (
        store.appender.append_run("T", 0, columns_of(1, random.Random(1)), **{**fields, **dict.fromkeys(wrong, 0)}).end
        > 0
    )
    abandon(store)


async def test_batches_and_singles_leave_the_same_on_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, list[bytes]] = {}
    left: dict[str, dict[str, bytes]] = {}
    runs = 0
    for way in ("runs", "one by one"):
        with monkeypatch.context() as patch:
            patch.setenv("VERNIERMQ_PURE", "1")  # what is compiled makes runs of its own
            if way == "one by one":
                patch.setattr(send, "split", lambda *_: None)
            async with twin(tmp_path / way, patch) as one:

                def count(events: Any) -> None:
                    nonlocal runs
                    runs += isinstance(events, Dispatched)

                one.broker.store.listeners.append(count)
                await meet(one)
                chunks = frames.in_chunks(frames.mixed(11, 1500), 12)
                answers[way] = [await one.give(chunk) for chunk in chunks]
                left[way] = one.left()
        if way == "runs":
            assert runs > 100
            runs = 0
    assert runs == 0
    assert answers["runs"] == answers["one by one"]
    assert left["runs"].keys() == left["one by one"].keys()
    for name, data in left["runs"].items():
        assert data == left["one by one"][name], name


# --- telling -------------------------------------------------------------------------------


def some(tmp_path: Path) -> tuple[list[Any], Callable[[], None]]:
    store = open_store(tmp_path)
    fields: dict[str, Any] = {"sys_flag": 0, "born_timestamp": 0, "born_host": BORN, "reconsume_times": 0}
    parts: list[Any] = [
        store.appender.append_run("T", 0, columns_of(3, random.Random(1)), **fields),
        store.append(PendingMessage("T", 0, b"x", {})),
        store.appender.append_run("T", 1, columns_of(2, random.Random(2)), **fields),
    ]
    return parts, lambda: abandon(store)


def test_what_was_dispatched_is_a_sequence_of_events(tmp_path: Path) -> None:
    parts, close = some(tmp_path)
    events = dispatched(parts)
    flat = [fields_of(event) for part in parts for event in (part if isinstance(part, Run) else [part])]

    assert isinstance(events, Dispatched)
    assert parts_of(events) is parts
    assert (len(events), list(map(fields_of, events))) == (6, flat)
    assert [fields_of(events[number]) for number in range(-6, 6)] == flat * 2
    assert list(map(fields_of, events[1:5:2])) == flat[1:5:2]
    assert [event.queue_offset for event in events] == [0, 1, 2, 3, 0, 1]
    for wrong in (6, -7):
        with pytest.raises(IndexError, match="no message"):
            events[wrong]
    close()


def test_single_events_stay_what_they_are(tmp_path: Path) -> None:
    parts, close = some(tmp_path)
    only = [parts[1]]

    assert dispatched(only) is only
    assert parts_of(only) is only
    close()


def test_sizes_are_those_of_all_events_by_topic(tmp_path: Path) -> None:
    parts, close = some(tmp_path)
    events = list(Dispatched(parts))
    expected: dict[str, list[int]] = {}
    for event in events:
        expected.setdefault(event.topic, []).append(event.size)

    assert len(events) > len(parts)
    assert sizes_of(Dispatched(parts)) == sizes_of(events) == expected
    assert sizes_of([]) == {}
    close()


@pytest.mark.parametrize(("messages", "count"), [(1, 1), (3, 1), (4, 2), (5, 3), (6, 3), (99, 3)])
def test_a_run_is_not_divided(tmp_path: Path, messages: int, count: int) -> None:
    parts, close = some(tmp_path)

    assert count_parts(parts, messages) == count
    close()


def test_a_store_that_refuses_writes_refuses_runs(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.refuse_writes("the disk is full")
    with pytest.raises(RequestRefused, match="the disk is full"):
        store.appender.append_run(
            "T", 0, columns_of(1, random.Random(1)), sys_flag=0, born_timestamp=0, born_host=BORN, reconsume_times=0
        )
    abandon(store)


RED, BLUE = java_hash("red"), java_hash("blue")
FILTERS = st.builds(
    MessageFilter,
    tag_codes=st.sampled_from([None, frozenset({RED}), frozenset({RED, BLUE}), frozenset({1})]),
    test=st.sampled_from([None, lambda properties: "KEYS" in properties, lambda properties: False]),
)


@given(st.lists(st.sampled_from(["", "red", "blue"]), min_size=1, max_size=5), st.integers(0, 12), FILTERS)
@settings(max_examples=200)
def test_a_waiting_pull_wants_a_run_if_it_wants_one_of_its_messages(
    tags: list[str], offset: int, message_filter: MessageFilter
) -> None:
    texts = [f"UNIQ_KEY\x01U\x02{'KEYS' if i % 2 else 'X'}\x01k\x02TAGS\x01{tag}\x02" for i, tag in enumerate(tags)]
    run = Run(
        "T", 0, 5, list(range(0, 100 * len(tags), 100)), [100] * len(tags), list(map(java_hash, tags)),
        [b"U"] * len(tags), [b""] * len(tags), [struct.pack(">H", len(text)) + text.encode() for text in texts],
        [text.encode() for text in texts], head_size=90, store_timestamp=1, store_host=BORN, sys_flag=0,
        born_timestamps=[1] * len(tags), reconsume_times=0,
    )  # fmt: skip
    pull = HeldPull("T", 0, offset, message_filter, 0.0, None, lambda: None)

    assert pull.wants(run) == any(map(pull.wants, run))


async def test_a_batch_wakes_the_pulls_that_wait_for_one_of_its_messages() -> None:
    async with running_broker() as broker, peer(broker.address) as producer, peer(broker.address) as consumer:
        await producer.send("T", b"first")
        waiting = Waiting()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.run, consumer, "T", 1, {})
            await until(lambda: len(broker.held_pulls) == 1)
            body = b"".join(frames.element(b"%d" % i, b"UNIQ_KEY\x01U%d\x02" % i) for i in range(40))
            fields: dict[str, object] = {
                "a": "producers",
                "b": "T",
                "e": 0,
                "f": 0,
                "g": 1,
                "h": 0,
                "i": "",
                "m": "true",
            }
            await producer.ask(RequestCode.SEND_BATCH_MESSAGE, body, **fields)

    assert waiting.answer is not None
    assert [message.body for message in decode_records(waiting.answer.body)] == [b"%d" % i for i in range(32)]


def test_figures_of_a_run_are_those_of_its_messages(tmp_path: Path) -> None:
    parts, close = some(tmp_path)
    whole, each = Marks(), Marks()

    whole.note(dispatched(parts))
    each.note(list(dispatched(parts)))

    for queue in (0, 1):
        assert whole.get("T", queue).as_json() == each.get("T", queue).as_json()
        assert whole.get("T", queue).high == each.get("T", queue).high
    close()
