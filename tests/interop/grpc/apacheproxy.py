"""Apache's proxy in local mode: broker and gRPC port of RocketMQ 5 in one process, and a name server beside it."""

from __future__ import annotations

import functools
import json
import socket
from pathlib import Path

from tests.interop.apache import OPENED, START_TIMEOUT, ApacheBroker
from tests.interop.grpc.clients import HERE
from tests.interop.processes import LOOPBACK, ServerProcess, free_ports
from tests.interop.toolchains import built_once, java_command, run_tool
from verniermq.client.sync import Admin


@functools.cache
def proxy_classpath() -> str:
    def build(target: Path) -> None:
        run_tool("mvn", "-B", "-q", "package", f"-Dserver.build={target}", cwd=HERE / "proxy")

    return f"{built_once('apache-proxy', HERE / 'proxy', build)}/lib/*"


class ApacheProxy(ApacheBroker):
    """Where :class:`ApacheBroker` starts a broker, this starts a proxy with the broker inside."""

    endpoint = ""

    def start(self) -> None:
        process = self.launch()
        process.wait_until(self._is_registered, START_TIMEOUT)
        process.wait_until(self._listens, START_TIMEOUT)

    def launch(self) -> ServerProcess:
        port = free_ports()
        self.endpoint = f"{LOOPBACK}:{port}"
        settings = self.folder / "proxy.json"
        known = {"rocketMQClusterName": "DefaultCluster", "localServeAddr": LOOPBACK, "grpcServerPort": port}
        settings.write_text(json.dumps({**known, "remotingListenPort": free_ports()}))
        home = self.folder / "apache-home"
        options = (*OPENED, f"-Drocketmq.home.dir={home}", "-cp", proxy_classpath())
        program = ("org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", "-n", self.namesrv)
        where = ("-bc", str(self.write_conf()), "-pc", str(settings))
        command = (*java_command(*options, home=home, jvm=self.scale.broker), *program, *where)
        self._broker_process = ServerProcess("proxy", command, self.folder / "proxy.log", cwd=home)
        return self._broker_process

    def make(self, name: str) -> None:
        """A topic and a group of this name; it makes neither by itself."""
        with Admin(namesrv=self.namesrv) as admin:
            admin.create_topic(name, queues=8, attributes={"message.type": "NORMAL"})
            admin.create_group(name)

    def _listens(self) -> bool:
        host, _, port = self.endpoint.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True
