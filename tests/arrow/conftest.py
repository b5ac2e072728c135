"""One broker for all tests of this folder; each test has topics of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.arrow.producing import Producing
from verniermq.testing import BrokerProcess, broker_process

WITH_PLUGIN = '--set=plugins.enable=["default", "spark"]'


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[BrokerProcess]:
    with broker_process(None, WITH_PLUGIN) as process:
        yield process


@pytest.fixture
def producing(shared_broker: BrokerProcess) -> Iterator[Producing]:
    with Producing(shared_broker.broker) as one:
        yield one


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return re.sub(r"[^\w]", "-", request.node.name.removeprefix("test_"))[:100]


Source = Callable[..., dict[str, str]]


@pytest.fixture
def source(shared_broker: BrokerProcess) -> Source:
    """The options of a source, with the name server filled in."""

    def options(**given: str) -> dict[str, str]:
        return {"nameServer": shared_broker.namesrv, **given}

    return options
