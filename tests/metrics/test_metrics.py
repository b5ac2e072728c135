"""What Prometheus gets: Apache's names, kinds and labels, the exporter's on request, and figures that are right."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import anyio
import attrs
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Parsed

from tests.kernel.enabling import enabled
from tests.metrics.names import APACHE, BUCKETS, EXPORTER, GRAFANA_10477
from tests.plugins.peer import Peer, peer
from tests.plugins.watching import look
from verniermq.client import Producer, PullConsumer, TransactionProducer, TransactionState
from verniermq.contrib.metrics.requests import EXACT_TO, FINE_SECONDS, LATENCIES_MS
from verniermq.contrib.metrics.text import Labels, escaped
from verniermq.kernel import Broker, Context, Declaration, Message, NoConfig, Property, Registry, RequestCode, Sample
from verniermq.protocol.versions import version_name
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

METRICS: dict[str, Any] = {
    "plugins__enable": ["default", "http", "metrics"],
    "plugins__http__listen": "127.0.0.1:0",
    "plugins__metrics__listen": "127.0.0.1:0",
}
COMMON = {"cluster": "DefaultCluster", "node_id": "broker-a", "node_type": "broker"}


@attrs.frozen
class Scrape:
    text: str
    samples: dict[str, list[Parsed]]
    kinds: dict[str, str]

    def one(self, name: str, **labels: str) -> float:
        """The figure with these labels among others."""
        (found,) = [
            sample.value for sample in self.samples.get(name, []) if labels.items() <= dict(sample.labels).items()
        ]
        return float(found)

    def labels(self, name: str) -> set[str]:
        return {label for sample in self.samples[name] for label in sample.labels}


async def scrape(broker: Broker, path: str = "/metrics", query: str = "") -> Scrape:
    seen = await look(broker, path, query)
    assert seen.status == 200, seen.text
    samples: dict[str, list[Parsed]] = {}
    kinds = {}
    for family in text_string_to_metric_families(seen.text):
        kinds[family.name + ("_total" if family.type == "counter" else "")] = family.type
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return Scrape(seen.text, samples, kinds)


async def consume(client: Peer, group: str, topic: str, offset: int, queue: int = 0) -> None:
    await client.ask_well(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue, commitOffset=offset
    )


# --- names ----------------------------------------------------------------------------------


async def test_the_names_kinds_and_labels_are_apaches(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        await busy(broker, client)
        found = await scrape(broker)

    missing = {name for name in APACHE if name not in found.kinds}
    assert missing == set()
    for name, (kind, labels) in APACHE.items():
        assert found.kinds[name] == kind, name
        shown = f"{name}_count" if kind == "histogram" else name
        if shown in found.samples:
            assert found.labels(shown) == labels, name


async def test_the_ranges_of_histograms_are_apaches(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        await busy(broker, client)
        await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName": "billing"}')
        await client.sent("orders", TIMER_DELAY_SEC=3600)
        timers = broker.host.active["schedule"].instance._timers
        with anyio.fail_after(30):
            while timers.not_taken_in or timers.service is None:  # noqa: ASYNC110 - it has no event of its own
                await anyio.sleep(0.01)
        found = await scrape(broker)

    assert {name for name, (kind, _) in APACHE.items() if kind == "histogram"} <= BUCKETS.keys()
    for name, bounds in BUCKETS.items():
        shown = dict.fromkeys(sample.labels["le"] for sample in found.samples.get(f"{name}_bucket", []))
        assert " ".join(shown) == f"{bounds} +Inf", name


async def busy(broker: Broker, client: Peer) -> None:
    """Something of each kind."""
    await client.sent("orders")
    await client.sent("orders", TIMER_DELAY_SEC=3600)
    await client.sent("orders", DELAY=5)
    await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="made", readQueueNums=1, writeQueueNums=1, perm=6)
    await client.pull("orders")
    await consume(client, "billing", "orders", 0)
    unknown = lambda message: TransactionState.UNKNOWN  # noqa: E731 - never asked
    async with TransactionProducer("transfers", checker=unknown, namesrv=broker.name_servers[0]) as producer:
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            await producer.send_in_transaction(Message("orders", b"x"), lambda message, number, state=state: state)
    async with PullConsumer("billing", namesrv=broker.name_servers[0]):
        pass


async def test_the_exporters_names_are_there_on_request(tmp_path: Path) -> None:
    settings = METRICS | {"plugins__metrics__names": ["exporter"]}
    async with running_broker(tmp_path, **settings) as broker, peer(broker.address) as client:
        await busy(broker, client)
        found = await scrape(broker)

    names = {name for name in found.kinds if not name.startswith(("rocketmq_pop", "rocketmq_timer", "target_info"))}
    assert names >= EXPORTER
    assert {found.kinds[name] for name in EXPORTER} == {"gauge"}
    assert found.one("rocketmq_producer_offset", topic="orders", broker="broker-a") == 2.0
    assert found.one("rocketmq_group_diff", group="billing", topic="orders", countOfOnlineConsumers="0") == 2.0
    assert found.one("rocketmq_brokeruntime_msg_put_total_today_now", des="broker-a") >= 2.0
    assert found.one("rocketmq_brokeruntime_commitlogdir_capacity_total") > 2**30
    assert "node_id" not in found.labels("rocketmq_group_diff")


async def test_the_dashboard_in_the_exporters_repository_finds_figures(tmp_path: Path) -> None:
    settings = METRICS | {"plugins__metrics__names": ["exporter"]}
    async with running_broker(tmp_path, **settings) as broker, peer(broker.address) as client:
        await busy(broker, client)
        await consume(client, "billing", "orders", 1)
        broker.host.active["metrics"].instance.messages_pulled("billing", "orders", 1, 100)
        found = await scrape(broker)

    assert GRAFANA_10477 < EXPORTER
    assert {name for name in GRAFANA_10477 if not found.samples.get(name)} == set()
    assert found.labels("rocketmq_producer_offset") >= {"topic"}
    assert found.labels("rocketmq_consumer_offset") >= {"group", "topic"}


async def test_the_exporters_rates_are_of_the_last_minute(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = METRICS | {"plugins__metrics__names": ["exporter"]}
    async with running_broker(tmp_path, clock=clock, **settings) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await scrape(broker)  # takes the first sample
        for _ in range(30):
            await client.sent("orders")
        broker.host.active["metrics"].instance.messages_pulled("billing", "orders", 15, 3000)
        await clock.advance(60)
        found = await scrape(broker)
        for _ in range(10):
            await clock.advance(60)
            later = await scrape(broker)

    assert found.one("rocketmq_producer_tps", topic="orders") == pytest.approx(0.5, rel=0.02)
    assert found.one("rocketmq_producer_message_size", topic="orders") > 30 * 90 / 60
    assert found.one("rocketmq_consumer_tps", topic="orders", group="billing") == pytest.approx(0.25, rel=0.02)
    assert found.one("rocketmq_consumer_message_size", topic="orders", group="billing") == pytest.approx(50, rel=0.02)
    assert later.one("rocketmq_producer_tps", topic="orders") == 0


async def test_units_may_be_left_out_of_apaches_names(tmp_path: Path) -> None:
    settings = METRICS | {"plugins__metrics__suffix": False, "plugins__metrics__labels": {"zone": 'a"b'}}
    async with running_broker(tmp_path, **settings) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await consume(client, "billing", "orders", 0)
        found = await scrape(broker)

    assert found.one("rocketmq_consumer_lag_latency", consumer_group="billing", zone='a"b') >= 0
    assert "rocketmq_storage_size_bytes" not in found.kinds
    assert "verniermq_disk_free_bytes" in found.kinds


# --- figures --------------------------------------------------------------------------------


async def test_a_message_counts_once_and_as_what_its_producer_sent(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock, **METRICS) as broker, peer(broker.address) as client:
        for _ in range(3):
            await client.sent("orders", b"x" * 2000)
        await client.sent("orders", DELAY=1)
        await client.sent("orders", __SHARDINGKEY="k")
        await clock.advance(2)
        bodies = await client.bodies("orders")
        found = await scrape(broker)

    assert len(bodies) == 5, "the delayed one was delivered"

    kinds = {kind: found.one("rocketmq_messages_in_total", topic="orders", message_type=kind) for kind in
             ("normal", "delay", "fifo")}  # fmt: skip
    assert kinds == {"normal": 3.0, "delay": 1.0, "fifo": 1.0}
    assert found.one("rocketmq_message_size_bucket", topic="orders", message_type="normal", le="1024.0") == 0
    assert found.one("rocketmq_message_size_bucket", topic="orders", message_type="normal", le="4096.0") == 3
    assert found.one("rocketmq_throughput_in_total", topic="orders", message_type="normal") > 6000


async def test_the_lag_of_a_group_that_nobody_consumes_for_is_shown(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock, **METRICS) as broker, peer(broker.address) as client:
        for _ in range(5):
            await client.sent("orders")
        await consume(client, "billing", "orders", 2)
        await clock.advance(90)
        found = await scrape(broker)
        await client.ask_well(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="billing", cleanOffset="true")
        after = await scrape(broker)

    labels = {"consumer_group": "billing", "topic": "orders", "is_retry": "false", "is_system": "false"}
    assert found.one("rocketmq_consumer_lag_messages", **labels) == 3.0
    assert found.one("rocketmq_consumer_ready_messages", **labels) == 3.0
    assert found.one("rocketmq_consumer_inflight_messages", **labels) == 0.0
    assert found.one("rocketmq_consumer_lag_latency_milliseconds", **labels) == pytest.approx(90_000, abs=30_000)
    assert found.one("verniermq_group_online", consumer_group="billing") == 0.0
    assert "billing" not in after.text


async def test_what_was_handed_out_is_in_flight_and_counts_as_out(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        for _ in range(4):
            await client.sent("orders")
        await consume(client, "readers", "orders", 1)
        await client.pull("orders")
        found = await scrape(broker)

    labels = {"consumer_group": "readers", "topic": "orders"}
    assert found.one("rocketmq_messages_out_total", **labels) == 4.0
    assert found.one("rocketmq_consumer_inflight_messages", **labels) == 3.0
    assert found.one("rocketmq_consumer_ready_messages", **labels) == 0.0


async def test_requests_are_timed_by_code_and_answer(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await client.sent("orders")
        await client.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="nothing")
        found = await scrape(broker)

    send = {"request_code": "send_message_v2", "response_code": "success"}
    assert found.one("rocketmq_rpc_latency_milliseconds_count", **send, result="success", is_long_polling="false") == 2
    assert found.one("verniermq_request_seconds_count", **send) == 2
    assert found.one("verniermq_request_seconds_count", request_code="get_topic_stats_info",
                     response_code="topic_not_exist") == 1  # fmt: skip
    assert set(LATENCIES_MS) <= {bound * 1000 for bound in FINE_SECONDS}


async def test_transactions_and_dead_letters_are_counted(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        await busy(broker, client)
        answer = await client.sent("orders")
        await client.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK, offset=_place(answer["msgId"]), group="billing", delayLevel=-1,
            originMsgId=answer["msgId"], originTopic="orders", unitMode="false", maxReconsumeTimes=1,
        )  # fmt: skip
        found = await scrape(broker)

    assert found.one("rocketmq_commit_messages_total", topic="orders") == 1.0
    assert found.one("rocketmq_rollback_messages_total", topic="orders") == 1.0
    assert found.one("rocketmq_finish_message_latency_milliseconds_count", topic="orders") == 1.0
    assert found.one("rocketmq_messages_in_total", topic="orders", message_type="transaction") == 2.0
    assert found.one("rocketmq_send_to_dlq_messages_total", consumer_group="billing", topic="orders") == 1.0


def _place(message_id: str) -> int:
    return int(message_id[-16:], 16)


async def test_timed_messages_wait_in_their_range(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        await client.sent("orders", TIMER_DELAY_SEC=1800)
        timers = broker.host.active["schedule"].instance._timers
        with anyio.fail_after(30):
            while timers.not_taken_in or timers.service is None:  # noqa: ASYNC110 - it has no event of its own
                await anyio.sleep(0.01)
        found = await scrape(broker)

    waiting = {
        sample.labels["timer_bound_s"]: sample.value for sample in found.samples["rocketmq_timer_message_snapshot"]
    }
    assert {bound for bound, count in waiting.items() if count} == {"3600"}
    assert found.one("rocketmq_timing_messages", topic="orders") == 1.0
    assert found.one("rocketmq_delay_message_latency_seconds_bucket", topic="orders", le="3600.0") == 1.0
    assert found.one("rocketmq_delay_message_latency_seconds_bucket", topic="orders", le="600.0") == 0.0


# --- detailed, other plugins, limits --------------------------------------------------------


async def test_it_may_be_served_where_http_serves_its_pages(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS | {"plugins__metrics__listen": ""}) as broker:
        http = broker.host.active["http"].instance
        assert http.address_of("/metrics") == http.address_of("/metrics/detailed") == http.address_of("/readyz")
        assert (await scrape(broker)).one("rocketmq_broker_permission") == 6


async def test_queues_are_shown_on_request_and_filtered(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        for queue in (0, 1, 1):
            await client.sent("orders", queue=queue)
        await consume(client, "billing", "orders", 0)
        await consume(client, "other", "orders", 0)
        found = await scrape(
            broker, "/metrics/detailed", "?family=verniermq_queue_lag_messages&group=bil*&topic=orders"
        )
        wrong = await look(broker, "/metrics/detailed", "?familie=x")

    lags = {sample.labels["queue_id"]: sample.value for sample in found.samples["verniermq_queue_lag_messages"]}
    assert lags == {"0": 1.0, "1": 2.0, "2": 0.0, "3": 0.0}
    assert set(found.kinds) == {"verniermq_queue_lag_messages", "target_info"}
    assert (wrong.status, wrong.text) == (400, "'familie' is no filter; known are family, group and topic\n")


@attrs.define(eq=False)
class Visits:
    declaration: ClassVar = Declaration(api=1, summary="Offers figures.")
    config: NoConfig
    broker: Context

    def setup(self, registry: Registry) -> None:
        registry.metric("visits_total", "counter", "Visits\\counted.", self.visits, labels=("room",))
        registry.metric("visits_broken", "gauge", "Raises.", self.broken)

    def visits(self) -> Iterable[Sample]:
        yield ('the "best"\n\\room',), 3

    def broken(self) -> Iterator[Sample]:
        raise LookupError("no figures")


async def test_metrics_of_other_plugins_are_written_and_a_broken_one_costs_no_other(tmp_path: Path) -> None:
    settings = METRICS | enabled("default", "http", "metrics", x=Visits)
    async with running_broker(tmp_path, **settings) as broker:
        await scrape(broker)
        found = await scrape(broker)

    assert found.one("visits_total", room='the "best"\n\\room', **COMMON) == 3.0
    assert "visits_broken" not in found.samples
    assert found.one("verniermq_scrape_failures_total") == 1.0


async def test_more_figures_than_there_may_be_are_left_out_and_said(tmp_path: Path) -> None:
    settings = METRICS | {"plugins__metrics__max_series": 2}
    async with running_broker(tmp_path, **settings) as broker, peer(broker.address) as client:
        for number in range(4):
            await client.sent(f"topic{number}")
        found = await scrape(broker)

    assert len(found.samples["rocketmq_messages_in_total"]) == 2
    assert "# 2 figures of rocketmq_messages_in_total are left out" in found.text


async def subscribe(client: Peer, group: str, topic: str, expression: str, kind: str = "TAG") -> None:
    subscription = {"topic": topic, "subString": expression, "expressionType": kind, "subVersion": 1}
    consumer = {"groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": [subscription]}
    body = orjson.dumps({"clientID": client.client_id, "consumerDataSet": [consumer]})
    await client.ask_well(RequestCode.HEART_BEAT, body)


async def test_messages_that_a_group_does_not_want_are_no_lag(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(tmp_path, clock=clock, **METRICS) as broker, peer(broker.address) as client:
        for tag in ("a", "b", "b", "c", "b"):
            await client.sent("orders", queue=0, TAGS=tag)
            await clock.advance(10)
        for group, expression, kind in (
            ("some", "a || c", "TAG"), ("none", "x", "TAG"), ("sql", "price > 1", "SQL92"), ("all", "*", "TAG"),
        ):  # fmt: skip
            await subscribe(client, group, "orders", expression, kind)
            await consume(client, group, "orders", 1)
        found = await scrape(broker)

    lags = {
        group: found.one("rocketmq_consumer_lag_messages", consumer_group=group)
        for group in ("some", "none", "sql", "all")
    }
    ages = [
        found.one("rocketmq_consumer_lag_latency_milliseconds", consumer_group=group)
        for group in ("some", "none", "all")
    ]
    estimated = {row.labels["consumer_group"]: row.value for row in found.samples["verniermq_lag_estimated"]}
    assert lags == {"some": 1.0, "none": 0.0, "sql": 4.0, "all": 4.0}
    assert ages[0] == pytest.approx(20_000, abs=9_000)  # of the message with tag c
    assert ages[1] == 0.0
    assert ages[2] == pytest.approx(40_000, abs=9_000)
    assert estimated == {"some": 0.0, "none": 0.0, "sql": 1.0}


async def test_of_a_long_queue_a_part_is_counted_and_the_rest_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verniermq.contrib.metrics.lag.SCANNED", 4)
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        for number in range(12):
            await client.sent("orders", queue=0, TAGS="a" if number % 2 else "b")
        await subscribe(client, "some", "orders", "a")
        await consume(client, "some", "orders", 0)
        found = await scrape(broker)

    assert found.one("rocketmq_consumer_lag_messages", consumer_group="some") == 6.0
    assert found.one("verniermq_lag_estimated", consumer_group="some") == 1.0


@pytest.mark.parametrize("names", [["apache", "verniermq"], ["exporter"]], ids=["broker", "exporter"])
async def test_ten_thousand_topics_and_three_groups_hold_nobody_up(tmp_path: Path, names: list[str]) -> None:
    topics, groups = 10_000, 3
    async with running_broker(tmp_path, **METRICS, plugins__metrics__names=names) as broker:
        for number in range(topics):
            for group in range(groups):
                broker.offsets.commit(f"group{group}", f"topic{number}", 0, 5)
            broker.topics.restore(f"topic{number}", 1)
        broker.offsets.commit("group0", "topic0", 0, 0)
        first = await turns_of_a_scrape(broker)  # makes what the others keep
        scrapes = [await turns_of_a_scrape(broker) for _ in range(5)]
        plugin = broker.host.active["metrics"].instance

    assert len(plugin.lag.rows) >= topics * groups
    assert all(len(scrape.turns) > 10 for scrape in scrapes)
    # Ten times what bench/metrics.py shall show: a step that grows with the topics holds the loop for longer still.
    assert min(max(scrape.turns) for scrape in scrapes) < 0.05, "a step of the scrape held the loop"
    # The garbage collector takes a millisecond for ten thousand of them, in one go.
    assert first.most_new < 30_000, "the first scrape left what it made to the garbage collector"
    assert max(scrape.most_new for scrape in scrapes) < 10_000, "each scrape makes what the one before had"


class Turns(NamedTuple):
    """What a scrape did to the loop."""

    turns: list[float]
    """The processor's time between two turns that another task gets, without the garbage collector."""
    most_new: int
    """How many objects that may be garbage there were at once which the collector had not seen."""


async def turns_of_a_scrape(broker: Broker) -> Turns:
    turns: list[float] = []
    most_new = 0
    ended = False

    async def watch() -> None:
        nonlocal most_new
        last = time.thread_time()
        while not ended:
            await anyio.lowlevel.checkpoint()
            now = time.thread_time()
            turns.append(now - last)
            last = now
            most_new = max(most_new, gc.get_count()[0])

    page = next(page for registry in broker.registries for page in registry.pages if page.path == "/metrics")
    gc.collect()
    gc.disable()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            answer = await page.serve({})  # type: ignore[misc]
            ended = True
    finally:
        gc.enable()
    assert answer.body
    return Turns(turns, most_new)


async def test_of_frequent_requests_some_are_timed_for_all(tmp_path: Path) -> None:
    sends = 20 * EXACT_TO
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        for _ in range(sends):
            await client.sent("orders")
        for _ in range(3):
            await client.send("%RETRY%" + "x" * 300)  # refused
        found = await scrape(broker)

    code = {"request_code": "send_message_v2"}
    counted = found.one("verniermq_request_seconds_count", **code, response_code="success")
    assert sends <= counted <= sends * (1 + 1 / EXACT_TO) + 1
    refused = [
        row
        for row in found.samples["verniermq_request_seconds_count"]
        if row.labels["request_code"] == code["request_code"]
    ]
    assert sum(row.value for row in refused) == counted + 3


async def test_a_batch_counts_as_its_messages(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker:
        async with Producer("orders", namesrv=broker.name_servers[0]) as producer:
            await producer.send_batch([Message("orders", b"x" * 10, "a", ["k"]) for _ in range(7)])
            await producer.send_batch([Message("orders", b"x", properties={"__SHARDINGKEY": "c"}) for _ in range(3)])
        found = await scrape(broker)

    assert found.one("rocketmq_messages_in_total", topic="orders", message_type="normal") == 7
    assert found.one("rocketmq_messages_in_total", topic="orders", message_type="fifo") == 3
    assert found.one("rocketmq_message_size_count", topic="orders", message_type="normal") == 7


@pytest.mark.parametrize("name", [Property.REAL_TOPIC, Property.TIMER_OUT_MS, Property.RETRY_TOPIC])
async def test_what_a_delivered_message_has_makes_none_of_a_clients_own(tmp_path: Path, name: str) -> None:
    """Somebody who sends on what was received, with its properties, alone or in a batch."""
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        async with Producer("orders", namesrv=broker.name_servers[0]) as producer:
            await producer.send_batch([Message("orders", b"x", properties={name: "%RETRY%other"}) for _ in range(5)])
        for value in ("orders", "%RETRY%other"):
            await client.sent("orders", **{name: value})
        await client.sent("orders", __SHARDINGKEY="k", **{name: "orders"})
        found = await scrape(broker)

    assert found.one("rocketmq_messages_in_total", topic="orders", message_type="normal") == 7
    assert found.one("rocketmq_messages_in_total", topic="orders", message_type="fifo") == 1


async def test_a_row_is_kept_for_as_long_as_its_group_and_topic_are_there(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        lag = broker.host.active["metrics"].instance.lag
        await client.sent("orders")
        await client.sent("other")
        await consume(client, "billing", "orders", 0)
        await consume(client, "billing", "other", 0)
        first = (await scrape(broker)).one("rocketmq_consumer_lag_messages", topic="orders")
        rows = {row.labels[3]: row for row in lag.rows}
        await consume(client, "billing", "orders", 1)
        second = (await scrape(broker)).one("rocketmq_consumer_lag_messages", topic="orders")
        assert {row.labels[3]: row for row in lag.rows} == rows
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="other")
        await scrape(broker)
        assert {row.labels[3] for row in lag.rows} & {"orders", "other"} == {"orders"}

    assert (first, second) == (1.0, 0.0)


async def test_an_age_grows_while_nothing_else_changes(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await consume(client, "billing", "orders", 0)
        first = await scrape(broker)
        await anyio.sleep(0.02)
        second = await scrape(broker)
        await client.sent("orders")
        third = await scrape(broker)

    age = "rocketmq_consumer_lag_latency_milliseconds"
    assert second.one(age, topic="orders") >= first.one(age, topic="orders") + 20
    assert third.one(age, topic="orders") >= second.one(age, topic="orders")
    lags = [found.one("rocketmq_consumer_lag_messages", topic="orders") for found in (first, second, third)]
    assert lags == [1, 1, 2]


async def test_a_topic_that_is_deleted_and_made_again_has_no_age_of_before(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await consume(client, "billing", "orders", 0)
        await anyio.sleep(0.2)
        before = await scrape(broker)
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
        again = broker.clock.now_ms()
        await client.sent("orders")
        await consume(client, "billing", "orders", 0)
        after = await scrape(broker)
        most = broker.clock.now_ms() - again

    age = "rocketmq_consumer_lag_latency_milliseconds"
    assert before.one(age, topic="orders") >= 200
    assert after.one(age, topic="orders") <= most


# --- small parts ----------------------------------------------------------------------------


def test_versions_are_named_as_apache_names_them() -> None:
    assert [version_name(number) for number in (479, 478, 413, 395, 213, 7)] == [
        "V5_3_3", "V5_3_3_SNAPSHOT", "V5_0_0", "V4_9_1", "V4_0_0", "V7",
    ]  # fmt: skip


def test_labels_are_sorted_and_escaped() -> None:
    labels = Labels.of(("topic", "group"), {"cluster": "50%{0}", "zone": 'a"b'})

    assert labels.text(("t", "g")) == 'cluster="50%{0}",group="g",topic="t",zone="a\\"b"'
    assert escaped("plain") == "plain"
    assert escaped('\\ " \n') == '\\\\ \\" \\n'


async def test_a_producer_notices_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **METRICS) as broker:
        async with Producer("orders", namesrv=broker.name_servers[0]) as producer:
            result = await producer.send(Message("orders", b"x"))
        found = await scrape(broker)

    assert result.queue_offset == 0
    assert found.one("verniermq_plugin_failures_total", plugin="metrics", hook="request") == 0
