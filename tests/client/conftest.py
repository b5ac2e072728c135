"""What the client's tests share: a broker beside them, and both event loops where it matters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.place import Place
from verniermq.testing import broker_process


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """One VernierMQ broker for all tests of the client; each uses topics and groups of its own."""
    quick = ("--set=plugins.txn.timeout=1s", "--set=plugins.txn.check_interval=1s")
    with broker_process(None, *quick) as process:
        yield Place(process.namesrv, process.broker, process.advance)
