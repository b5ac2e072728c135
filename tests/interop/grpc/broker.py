"""A broker with the plugin ``grpc``, as a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop.processes import LOOPBACK, free_ports
from tests.interop.verniermq_process import VernierMQBroker
from tests.interop.wire import SUCCESS, request

UPDATE_GROUP = 200

SETTINGS = """
[plugins]
enable = ["default", {more}"grpc"]
[plugins.grpc]
port = {port}
[plugins.txn]
timeout = "1s"
check_interval = "1s"
{tables}
"""


class GrpcBroker(VernierMQBroker):
    """Its gRPC port is known beforehand."""

    def __init__(self, folder: Path, more: str = "", tables: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_ports()
        config = folder / "broker.toml"
        config.write_text(SETTINGS.format(port=port, more=more, tables=tables))
        super().__init__(folder, config=config)
        self.endpoint = f"{LOOPBACK}:{port}"

    def make_group(self, name: str, **members: Any) -> None:
        answer = request(self.broker, UPDATE_GROUP, body=json.dumps({"groupName": name, **members}).encode())
        assert answer.code == SUCCESS, answer
