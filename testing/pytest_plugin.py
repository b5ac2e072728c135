"""Fixtures for other people's test suites; pytest finds them once VernierMQ is installed.

``verniermq_broker`` is a broker beside the tests, one for the whole session and emptied before each test; it
serves clients in any language, and ``verniermq_broker.advance(seconds)`` moves its time. ``verniermq_clock`` is for
async tests that run a broker in their own process with ``running_broker(clock=…)``.

Nothing of the broker is imported until a fixture is used: this module loads in every pytest run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from verniermq.testing import BrokerProcess
    from verniermq.testing.clock import ManualClock


@pytest.fixture(scope="session")
def _verniermq_process() -> Iterator[BrokerProcess]:
    from verniermq.testing import broker_process

    with broker_process() as process:
        yield process


@pytest.fixture
def verniermq_broker(_verniermq_process: BrokerProcess) -> BrokerProcess:
    """A running broker without messages, topics or groups: ``.namesrv`` and ``.broker`` are its addresses."""
    _verniermq_process.reset()
    return _verniermq_process


@pytest.fixture
def verniermq_clock() -> ManualClock:
    """A clock to give to ``running_broker(clock=…)`` and to move: ``await verniermq_clock.advance(60)``."""
    from verniermq.testing.clock import ManualClock

    return ManualClock()
