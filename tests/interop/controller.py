"""Apache's controller as a process: what its brokers, and ours, can choose their master through."""

from __future__ import annotations

from pathlib import Path

import anyio

from verniermq.kernel import Command, RemotingError
from verniermq.plugins.ha.controller import ControllerCode
from verniermq.protocol.peers import Peers

from .apache import OPENED
from .processes import LOOPBACK, ServerProcess, free_ports
from .toolchains import SMALL_JVM, java_command, server_classpath


class ApacheController:
    """One controller, that looks every second for brokers whose heartbeats ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_ports()
        self.address = f"{LOOPBACK}:{self._port}"
        self._process: ServerProcess | None = None

    def __enter__(self) -> ApacheController:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        home = self._folder / "controller"
        home.mkdir(parents=True, exist_ok=True)
        conf = home / "controller.conf"
        conf.write_text(
            f"controllerDLegerGroup=group1\ncontrollerDLegerPeers=n0-{self.address}\ncontrollerDLegerSelfId=n0\n"
            f"controllerStorePath={home / 'store'}\nscanNotActiveBrokerInterval=1000\nmappedFileSize=1048576\n"
        )
        options = (*OPENED, f"-Drocketmq.home.dir={home}", "-cp", server_classpath())
        main = "org.apache.rocketmq.controller.ControllerStartup"
        command = (*java_command(*options, main, home=home, jvm=(*SMALL_JVM, "-Xmx256m")), "-c", str(conf))
        self._process = ServerProcess("controller", command, home / "log", cwd=home)
        self._process.wait_until(self._leads, 120)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _leads(self) -> bool:
        async def ask() -> bool:
            async with Peers(timeout=2) as peers:
                try:
                    answer = await peers.ask(self.address, Command.request(ControllerCode.GET_METADATA_INFO))
                except RemotingError:
                    return False
                return bool(answer.ext.get("controllerLeaderAddress"))

        return anyio.run(ask)
