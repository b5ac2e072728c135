"""A real ``celery worker``: results, ETA, control from another process, and the example of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import group

from tests.celery.workers import PATIENCE, Site, until
from verniermq.testing import broker_process

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with broker_process() as broker, Site(broker, tmp_path_factory.mktemp("celery")) as made:
        made.worker("one", concurrency=2)
        yield made


def test_results_of_a_group_come_back(site: Site) -> None:
    app = site.app
    add = app.signature("tests.celery.app.add")

    results = group([add.clone((number, number)) for number in range(20)], app=app).apply_async()

    assert results.get(timeout=PATIENCE) == [2 * number for number in range(20)]


def test_a_task_with_a_countdown_waits_in_the_broker(site: Site) -> None:
    app = site.app

    app.send_task("tests.celery.app.note", ("later",), countdown=3600)
    app.send_task("tests.celery.app.note", ("now",))
    until(lambda: site.notes()["now"])
    reserved = app.control.inspect(timeout=PATIENCE, limit=1).scheduled()
    early = site.notes()["later"]
    site.broker.advance(3600)
    # Due by the broker's clock; the worker's own says that it is early, so it is asked what it holds.
    until(lambda: app.control.inspect(timeout=PATIENCE, limit=1).scheduled()["one@test"])

    assert reserved == {"one@test": []}
    assert early == 0


def test_a_worker_answers_pings_and_forgets_revoked_tasks(site: Site) -> None:
    app = site.app

    pong = app.control.inspect(timeout=PATIENCE, limit=1).ping()
    app.control.revoke("no-such-task", reply=True, timeout=PATIENCE, limit=1)
    app.send_task("tests.celery.app.note", ("revoked",), task_id="no-such-task")
    app.send_task("tests.celery.app.note", ("kept",))
    until(lambda: site.notes()["kept"])

    assert pong == {"one@test": {"ok": "pong"}}
    assert site.notes()["revoked"] == 0
