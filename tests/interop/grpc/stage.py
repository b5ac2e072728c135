"""Runs what clients are put through side by side: each of it mostly waits, and none minds the others.

A test marked :func:`beside` is one for each client. The first of them starts the bodies of all that are to run, a few
at a time; each then waits for its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.interop.drivers import Driver
from tests.interop.grpc.broker import GrpcBroker
from tests.interop.grpc.clients import GRPC_CLIENTS, grpc_driver

AT_ONCE = 3 * (os.cpu_count() or 2)


@attrs.define(eq=False)
class Act:
    """What one test body works with."""

    driver: Driver
    broker: GrpcBroker
    """Of all, so that the names of topics and groups begin with the client's."""
    guarded: GrpcBroker
    """One that lets nobody in without credentials."""
    folder: Path

    def name(self, text: str) -> str:
        return f"{self.driver.client}-{text}"


Scenario = Callable[[Act], None]


def beside(scenario: Scenario) -> Callable[..., None]:
    """Make a test for each client of ``scenario``, which runs beside the others."""

    @pytest.mark.parametrize("client", GRPC_CLIENTS)
    def test(stage: Stage, client: str) -> None:
        stage.outcome(scenario, client)

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    test.scenario = scenario  # type: ignore[attr-defined]
    return test


@attrs.define(eq=False)
class Stage:
    """The brokers and the runs of one module's tests."""

    folder: Path
    broker: GrpcBroker
    guarded: GrpcBroker
    _pool: ThreadPoolExecutor
    _runs: dict[tuple[Scenario, str], Future[None]] = attrs.field(factory=dict, init=False)
    _numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1), init=False)

    def start(self, wanted: Iterable[tuple[Scenario, str]]) -> None:
        wanted = list(wanted)
        builds = {client: self._pool.submit(grpc_driver, client) for _, client in wanted}
        for scenario, client in wanted:
            self._runs[scenario, client] = self._pool.submit(self._run, scenario, client, builds[client])

    def outcome(self, scenario: Scenario, client: str) -> None:
        """Wait for the end of a run; what it raised is raised here."""
        self._runs[scenario, client].result()

    def _run(self, scenario: Scenario, client: str, build: Future[tuple[str, ...]]) -> None:
        folder = self.folder / f"{next(self._numbers)}-{client}"
        folder.mkdir()
        driver = Driver(client, build.result(), folder)
        try:
            scenario(Act(driver, self.broker, self.guarded, folder))
        finally:
            driver.close()


def selected(request: pytest.FixtureRequest) -> list[tuple[Scenario, str]]:
    """The scenarios of those tests that are to run, in their order."""

    def scenario_of(item: Any) -> Any:
        return getattr(getattr(item, "function", None), "scenario", None)

    items = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    return [(scenario_of(item), item.callspec.params["client"]) for item in items if scenario_of(item)]  # type: ignore[attr-defined]
