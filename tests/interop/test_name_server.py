"""Each one's broker at the other's name server."""

from __future__ import annotations

from pathlib import Path

import pytest

from .apache import BROKER_NAME, ApacheBroker
from .verniermq_process import VernierMQBroker
from .wire import registered_brokers

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("settings", ["", 'brokers = ["127.0.0.1"]'], ids=["this machine", "by address"])
def test_an_apache_broker_registers_with_our_name_server(tmp_path: Path, settings: str) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f"[plugins.namesrv]\n{settings}\n")
    with VernierMQBroker(tmp_path, config=config) as ours:
        apache = ApacheBroker(tmp_path)
        apache.namesrv = ours.namesrv
        try:
            apache.start()
            registered = registered_brokers(ours.namesrv) or b""
        finally:
            apache.close()

    assert BROKER_NAME.encode() in registered
    assert ours.broker.encode() in registered


def test_our_broker_registers_with_apache_s_name_server_which_passes_over_the_signature(tmp_path: Path) -> None:
    apache = ApacheBroker(tmp_path)
    config = tmp_path / "broker.toml"
    config.write_text(f'[broker]\nnamesrv = ["{apache.namesrv}"]\n[plugins.namesrv]\nsecret = "a secret of ours"\n')
    try:
        apache.start_namesrv()
        with VernierMQBroker(tmp_path, config=config) as ours:
            assert ours.process is not None
            ours.process.wait_until(lambda: ours.broker.encode() in (registered_brokers(apache.namesrv) or b""), 30)
        assert ours.broker.encode() not in (registered_brokers(apache.namesrv) or b""), "it said goodbye"
    finally:
        apache.close()
