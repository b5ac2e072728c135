"""Master and slave, one of them Apache's: the same bytes in both logs, in both directions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from verniermq.cli import main

from .apache import ApacheBroker
from .processes import free_ports
from .toolchains import OLD_SERVER, SERVER
from .verniermq_process import VernierMQBroker
from .wire import registered_brokers

pytestmark = pytest.mark.timeout(600)

NAME = "pair"
SEGMENT = 64 * 1024
PATIENCE = 180.0
OURS = f"""\
[broker]
name = "{NAME}"
id = {{broker_id}}
namesrv = ["{{namesrv}}"]

[store]
segment_size = {SEGMENT}
max_message_size = "32KiB"

[plugins]
enable = ["default", "ha"]

[plugins.ha]
role = "{{role}}"
port = {{port}}
"""
APACHE = {"brokerName": NAME, "mappedFileSizeCommitLog": str(SEGMENT), "maxMessageSize": "32768"}


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def log_files(store: Path) -> dict[str, bytes]:
    """Without files that were only made ahead of time."""
    files = {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}
    return {name: data for name, data in files.items() if any(data)}


def send(namesrv: str, count: int) -> list[str]:
    from verniermq.client import Message
    from verniermq.client.sync import Producer

    with Producer("p", namesrv=namesrv, send_timeout=10.0) as producer:
        return [
            str(producer.send(Message("copied", f"{number:05d}".encode() + bytes(500))).status)
            for number in range(count)
        ]


def printed(namesrv: str) -> list[str]:
    """The numbers of all messages that a broker has."""
    command = ["tail", "copied", "--from-start", "--no-wait", "--namesrv", namesrv, "--format", "{body}"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return [line[:5] for line in result.stdout.splitlines()]


def ours(folder: Path, namesrv: str, role: str, broker_id: int) -> VernierMQBroker:
    folder.mkdir()
    config = folder / "broker.toml"
    port = free_ports()
    config.write_text(OURS.format(namesrv=namesrv, role=role, broker_id=broker_id, port=port))
    return VernierMQBroker(folder, config=config)


def equal(one: Path, other: Path) -> bool:
    return log_files(one) == log_files(other)


@pytest.mark.parametrize("version", [SERVER, OLD_SERVER])
def test_our_slave_follows_apaches_master(tmp_path: Path, version: str) -> None:
    (tmp_path / "apache").mkdir()
    properties = {**APACHE, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
    with (
        ApacheBroker(tmp_path / "apache", properties=properties, version=version) as apache,
        ours(tmp_path / "ours", apache.namesrv, "slave", 1) as slave,
    ):
        until(lambda: slave.broker.encode() in (registered_brokers(apache.namesrv) or b""), "not registered")
        until(lambda: send(apache.namesrv, 1) == ["SEND_OK"], "our slave does not acknowledge")
        assert send(apache.namesrv, 300) == ["SEND_OK"] * 300
        until(lambda: equal(apache.store, slave.store), "the logs differ")
        slave.restart()
        until(lambda: send(apache.namesrv, 1) == ["SEND_OK"], "our slave does not come back")
        until(lambda: equal(apache.store, slave.store), "the logs differ after a restart")
        assert len(log_files(slave.store)) > 2
        slave.stop()

    # What was a slave of Apache's is a store that Apache's broker opens by itself.
    (tmp_path / "alone").mkdir()
    with ApacheBroker(tmp_path / "alone", slave.store, APACHE, version=version) as alone:
        bodies = printed(alone.namesrv)
        assert set(bodies) == {f"{number:05d}" for number in range(300)}
        assert len(bodies) >= 302  # a send before the slave was there is answered otherwise, and repeated
        assert send(alone.namesrv, 1) == ["SEND_OK"]


@pytest.mark.parametrize("version", [SERVER, OLD_SERVER])
def test_apaches_slave_follows_our_master(tmp_path: Path, version: str) -> None:
    (tmp_path / "apache").mkdir()
    properties = {**APACHE, "brokerRole": "SLAVE", "brokerId": "1"}
    apache = ApacheBroker(tmp_path / "apache", properties=properties, version=version)
    try:
        apache.start_namesrv()
        with ours(tmp_path / "ours", apache.namesrv, "sync_master", 0) as master:
            until(lambda: master.broker.encode() in (registered_brokers(apache.namesrv) or b""), "not registered")
            assert send(apache.namesrv, 200) == ["SLAVE_NOT_AVAILABLE"] * 200
            apache.start()
            until(lambda: equal(apache.store, master.store), "the logs differ")
            assert send(apache.namesrv, 100) == ["SEND_OK"] * 100
            until(lambda: equal(apache.store, master.store), "the logs differ afterwards")
            assert len(log_files(master.store)) > 2
            apache.kill()
            send(apache.namesrv, 10)
            apache.start()
            until(lambda: equal(apache.store, master.store), "the logs differ after the slave was killed")
    finally:
        apache.close()
