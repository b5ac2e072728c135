"""Celery at work: many tasks, killed workers, chords, beat, a broker that restarts. Real processes throughout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import chord

from tests.celery.workers import PATIENCE, Site, kill, until
from verniermq.testing import BrokerProcess, broker_process

pytestmark = pytest.mark.timeout(300)

TASKS = 1000


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with broker_process() as running:
        yield running


def test_a_thousand_tasks_are_done_once_by_four_workers(broker: BrokerProcess, tmp_path: Path) -> None:
    with Site(broker, tmp_path) as site:
        for number in range(4):
            site.worker(f"w{number}", concurrency=1)
        for number in range(TASKS):
            site.app.send_task("tests.celery.app.note", (f"task{number}",), ignore_result=True)
        until(lambda: sum(site.notes().values()) >= TASKS, lambda: sum(site.notes().values()), 120)
        names = {path.name.split(".")[1] for path in tmp_path.iterdir() if path.name.startswith("task")}
        site.app.control.shutdown()
        codes = [worker.wait(PATIENCE) for worker in site.processes]
        notes = site.notes()

    assert {name: count for name, count in notes.items() if count != 1} == {}
    assert len(notes) == TASKS
    assert len(names) == 4
    assert codes == [0, 0, 0, 0]


def test_what_a_killed_worker_had_is_done_by_another(broker: BrokerProcess, tmp_path: Path) -> None:
    with Site(broker, tmp_path, visibility=10) as site:
        victim = site.worker("victim", concurrency=2)
        for number in range(2):
            site.app.send_task("tests.celery.app.slow", (f"slow{number}", 60), ignore_result=True)
        until(lambda: site.notes()["slow0-begins"] and site.notes()["slow1-begins"])
        for number in range(50):
            site.app.send_task("tests.celery.app.note", (f"task{number}",), ignore_result=True)
        kill(victim)
        for number in range(2):
            (tmp_path / f"slow{number}.go").touch()
        site.worker("heir", concurrency=2)
        until(lambda: len(site.notes()) == 54, lambda: site.notes(), 120)
        notes = site.notes()

    assert notes["slow0-begins"] == notes["slow1-begins"] == 2
    assert notes["slow0-ends"] == notes["slow1-ends"] == 1
    assert {notes[f"task{number}"] for number in range(50)} == {1}


def test_a_task_may_take_longer_than_the_visibility_timeout(broker: BrokerProcess, tmp_path: Path) -> None:
    with Site(broker, tmp_path, visibility=6) as site:
        site.worker("one", concurrency=2)
        site.app.send_task("tests.celery.app.slow", ("long", 15), ignore_result=True)
        until(lambda: site.notes()["long-ends"], seconds=120)
        notes = site.notes()

    assert (notes["long-begins"], notes["long-ends"]) == (1, 1)


def test_a_chord_waits_for_its_group(broker: BrokerProcess, tmp_path: Path) -> None:
    with Site(broker, tmp_path, backend=f"db+sqlite:///{tmp_path / 'results.sqlite'}") as site:
        site.worker("one", concurrency=2)
        add = site.app.signature("tests.celery.app.add")
        result = chord([add.clone((number, 1)) for number in range(10)], app=site.app)(
            site.app.signature("tests.celery.app.total")
        )
        value = result.get(timeout=120)

    assert value == 55


def test_beat_sends_its_tasks(broker: BrokerProcess, tmp_path: Path) -> None:
    with Site(broker, tmp_path) as site:
        site.worker("one", concurrency=1)
        site.celery("beat", "-l", "info")
        until(lambda: site.notes()["tick"] >= 3)


def test_workers_go_on_when_the_broker_was_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    with Site(broker, tmp_path) as site:
        site.worker("one", concurrency=2)
        for number in range(20):
            site.app.send_task("tests.celery.app.note", (f"before{number}",), ignore_result=True)
        until(lambda: len(site.notes()) == 20)
        broker.kill()
        broker.start()
        for number in range(20):
            site.app.send_task("tests.celery.app.note", (f"after{number}",), ignore_result=True, retry=True)
        until(lambda: len(site.notes()) == 40, lambda: site.notes(), 120)
