"""Runs what clients are put through side by side: each of it mostly waits, and none minds the others.

:func:`beside` makes a test for each client of a scenario. The first of them starts all that are to run, a few at a
time; each then waits for its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs
import pytest

from tests.interop.drivers import Driver
from tests.interop.grpc.clients import GRPC_CLIENTS, grpc_driver

AT_ONCE = 3 * (os.cpu_count() or 2)


class Server(Protocol):
    """What clients talk to."""

    endpoint: str
    namesrv: str

    def make_group(self, name: str, **members: Any) -> None: ...


@attrs.define(eq=False)
class Act:
    """What one test body works with."""

    driver: Driver
    broker: Server
    """Of all, so that the names of topics and groups begin with the client's."""
    guarded: Server | None
    """One that lets nobody in without credentials."""
    folder: Path

    def name(self, text: str) -> str:
        return f"{self.driver.client}-{text}"


Scenario = Callable[[Act], None]


def beside(scenario: Scenario, clients: Sequence[str] = GRPC_CLIENTS) -> Callable[..., None]:
    """Make a test for each client of ``scenario``, which runs beside the others."""

    @pytest.mark.parametrize("client", clients)
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
    broker: Server
    guarded: Server | None
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


@contextmanager
def running_stage(
    request: pytest.FixtureRequest, folder: Path, broker: Server, guarded: Server | None = None
) -> Iterator[Stage]:
    """A stage on which all that the requesting module is to run has begun."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        stage = Stage(folder, broker, guarded, pool)
        stage.start(_selected(request))
        yield stage
        pool.shutdown(cancel_futures=True)


def _selected(request: pytest.FixtureRequest) -> list[tuple[Scenario, str]]:
    """The scenarios of those tests that are to run, in their order."""
    found = []
    for item in request.session.items:
        scenario = getattr(getattr(item, "function", None), "scenario", None)
        if scenario is not None and getattr(item, "module", None) is request.module:
            found.append((scenario, item.callspec.params["client"]))  # type: ignore[attr-defined]
    return found
