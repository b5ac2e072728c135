"""VernierMQ's own client against Apache's name server and broker: the same scenarios as against our own.

``tests/client/scenarios`` says what they are; here only the place is another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.crashes import CRASHES
from tests.client.place import Place
from tests.client.scenarios import SCENARIOS
from verniermq.client import Message, TransactionProducer, TransactionState
from verniermq.client.errors import BadMessage

from .apache import ApacheBroker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

SETTINGS = {
    # Off by default there; what is asked for needs them.
    "enablePropertyFilter": "true",
    # Checks after seconds instead of half a minute.
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    # How long answers wait to be noted together; longer than the interval, and the same one is asked about again.
    "transactionOpBatchInterval": "100",
    # The level of a first retry is the third, 10 s by default. A wrong one would still take much longer.
    "messageDelayLevel": "1s 1s 1s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
}


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One Apache name server and broker for all scenarios; each uses topics and groups of its own."""
    with ApacheBroker(tmp_path_factory.mktemp("apache"), properties=SETTINGS) as running:
        yield Place(running.namesrv, running.broker, longest_delay=2)


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_scenario(scenario: str, apache: Place) -> None:
    await SCENARIOS[scenario](apache)


@pytest.mark.parametrize("crash", CRASHES)
async def test_crash(crash: str, tmp_path: Path) -> None:
    with ApacheBroker(tmp_path) as running:
        await CRASHES[crash](running)


async def test_a_delay_in_a_transaction_is_refused_where_it_would_be_lost(apache: Place) -> None:
    topic = await apache.topic("delayed-transaction")
    producer = TransactionProducer("tx", namesrv=apache.namesrv, checker=lambda message: TransactionState.COMMIT)

    async with producer:
        with pytest.raises(BadMessage, match="would lose it"):
            async with producer.transaction(Message(topic, b"later", delay_level=1)):
                pytest.fail("the local transaction must not run")
