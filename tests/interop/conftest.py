"""Fixtures of the interop suite: a driver for each real client, and a broker for it to talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .drivers import Driver
from .targets import Target, fresh_target
from .toolchains import CLIENTS, driver_command
from .wire import create_topic


@pytest.fixture(params=CLIENTS)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    """Each real client in turn, built if needed."""
    driver = Driver(request.param, driver_command(request.param), tmp_path)
    yield driver
    driver.close()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """A fresh broker with an empty store."""
    with fresh_target(tmp_path) as running:
        yield running


@pytest.fixture
def topic(driver: Driver, target: Target) -> str:
    """A topic the client can send to.

    The broker creates it at the first message. Only ali-ons never gets that far: it gives up as soon as the
    name server does not know the topic, without asking for the default topic's route as the others do.
    """
    name = "interop"
    if driver.client == "node":
        create_topic(target.broker, target.namesrv, name)
    return name
