"""A server of ZooKeeper as a process; Debian has it as ``zookeeper``, ``zookeeper.sh`` installs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from .processes import LOOPBACK, ServerProcess, free_ports
from .toolchains import SMALL_JVM, java_command

SCRIPT = Path(__file__).with_name("zookeeper.sh")
CLASSPATH = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar"


class ZooKeeperServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_ports()
        self.address = f"{LOOPBACK}:{self._port}"
        self._process: ServerProcess | None = None

    def __enter__(self) -> ZooKeeperServer:
        subprocess.run([str(SCRIPT)], check=True, timeout=300)
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        home = self._folder / "zookeeper"
        home.mkdir(exist_ok=True)
        conf = home / "zoo.cfg"
        conf.write_text(
            f"tickTime=500\ndataDir={home / 'data'}\nclientPort={self._port}\nclientPortAddress={LOOPBACK}\n"
            "admin.enableServer=false\n"
        )
        main = ("-Dzookeeper.root.logger=WARN,CONSOLE", "-cp", CLASSPATH)
        command = java_command(
            *main,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(conf),
            home=home,
            jvm=(*SMALL_JVM, "-Xmx128m"),
        )
        self._process = ServerProcess("ZooKeeper", command, home / "log", cwd=home)
        self._process.wait_until(self._answers, 120)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _answers(self) -> bool:
        client = KazooClient(self.address)
        try:
            client.start(timeout=1)
        except KazooTimeoutError:
            return False
        finally:
            client.stop()
            client.close()
        return True
