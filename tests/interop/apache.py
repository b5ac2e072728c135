"""Apache's own name server and broker as processes, small enough to run beside a test, and ``mqadmin``.

They are what the suite itself is proven against, and the other side of the tests that exchange files:
``ApacheBroker(folder, store=…)`` opens a store that somebody else wrote.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from .processes import LOOPBACK, ServerProcess, free_ports
from .toolchains import SERVER, SMALL_JVM, java_command, server_classpath
from .wire import registered_brokers

BROKER_NAME = "apache-broker"
START_TIMEOUT = 120.0
STOP_TIMEOUT = 60.0

LOGGING_NOISE = re.compile(r"^\d\d:\d\d:\d\d,\d{3} \|-.*\n", re.MULTILINE)

# The store reaches into the JDK to unmap its files, which Java 17 allows only when told.
OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.nio", "jdk.internal.ref", "sun.nio.ch")
)

# 16 MiB of log per file instead of 1 GiB. Whoever opens a store with other sizes has to say so.
SMALL_STORE = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeTimerLog": str(1024 * 1024),
    "maxIndexNum": "100000",
    "maxHashSlotNum": "25000",
}


class Scale(NamedTuple):
    """How large the two processes are."""

    broker: tuple[str, ...]
    """Options of the broker's virtual machine."""
    namesrv: tuple[str, ...]
    """Options of the name server's."""
    properties: Mapping[str, str]
    """Of ``broker.conf``."""


SMALL = Scale(
    # Each thread that stores a message keeps a buffer of 4 MiB: a pop alone has three kinds of threads that do.
    broker=(*SMALL_JVM, "-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=1g"),
    namesrv=(*SMALL_JVM, "-Xms64m", "-Xmx256m", "-XX:MaxDirectMemorySize=64m"),
    # The shortest it allows; a first registration can miss a name server that is still warming up.
    properties={**SMALL_STORE, "registerNameServerPeriod": "10000"},
)


class ApacheBroker:
    """A name server and one broker that registered with it. Leaving the context kills both.

    ``properties`` are the broker's own (``broker.conf``) and win over the ones chosen here. ``version`` is RocketMQ's.
    """

    def __init__(
        self,
        folder: Path,
        store: Path | None = None,
        properties: Mapping[str, str] | None = None,
        scale: Scale = SMALL,
        version: str = SERVER,
    ) -> None:
        self.folder = folder
        self.version = version
        self.scale = scale
        self.store = store or folder / "apache-store"
        self.properties = dict(properties or {})
        # The broker also listens two ports lower (its "fast" port) and one higher (replication).
        self._broker_port = free_ports(-2, 1)
        self.broker = f"{LOOPBACK}:{self._broker_port}"
        self._namesrv_port = free_ports()
        self.namesrv = f"{LOOPBACK}:{self._namesrv_port}"
        self._namesrv_process: ServerProcess | None = None
        self._broker_process: ServerProcess | None = None

    def __enter__(self) -> Self:
        try:
            self.start_namesrv()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its proper shutdown takes 10 to 20 seconds. Who wants the files closed calls stop() first.
        self.close()

    def start(self) -> None:
        """Start the broker, after :meth:`stop` or :meth:`kill` on the same port and store again."""
        self.launch().wait_until(self._is_registered, START_TIMEOUT)

    def launch(self) -> ServerProcess:
        """Start the broker without waiting for it."""
        conf = self.write_conf()
        self._broker_process = self._run("org.apache.rocketmq.broker.BrokerStartup", self.scale.broker, conf)
        return self._broker_process

    def write_conf(self) -> Path:
        """Write down the broker's properties, and make its store's folder."""
        conf = self.folder / "broker.conf"
        settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": BROKER_NAME,
            "brokerId": "0",
            "brokerIP1": LOOPBACK,
            "brokerIP2": LOOPBACK,
            "namesrvAddr": self.namesrv,
            "listenPort": str(self._broker_port),
            "haListenPort": str(self._broker_port + 1),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            # A developer's disk may be fuller than a broker would accept.
            "diskMaxUsedSpaceRatio": "98",
            **self.scale.properties,
            **self.properties,
        }
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.store.mkdir(parents=True, exist_ok=True)
        return conf

    def stop(self) -> None:
        """Let the broker flush, say goodbye to the name server, and end."""
        if self._broker_process:
            self._broker_process.stop(STOP_TIMEOUT)

    def kill(self) -> None:
        """Crash the broker. The name server lives on, as it would."""
        if self._broker_process:
            self._broker_process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def start_namesrv(self) -> None:
        conf = self.folder / "namesrv.conf"
        conf.write_text(f"listenPort={self._namesrv_port}\nbindAddress={LOOPBACK}\n")
        self._namesrv_process = self._run("org.apache.rocketmq.namesrv.NamesrvStartup", self.scale.namesrv, conf)
        self._namesrv_process.wait_until(self._namesrv_answers, START_TIMEOUT)

    @property
    def pids(self) -> list[int]:
        """The processes it takes to serve a client."""
        return [process.pid for process in (self._namesrv_process, self._broker_process) if process]

    def _run(self, main_class: str, jvm: tuple[str, ...], conf: Path) -> ServerProcess:
        home = self.folder / "apache-home"
        if self.version.startswith("4."):
            _write_logback(home / "conf")
        options = (*OPENED, f"-Drocketmq.home.dir={home}", "-cp", server_classpath(self.version), main_class)
        name = main_class.rsplit(".", 1)[1]
        command = (*java_command(*options, home=home, jvm=jvm), "-c", str(conf))
        return ServerProcess(name, command, self.folder / f"{name}.log", cwd=home)

    def _namesrv_answers(self) -> bool:
        return registered_brokers(self.namesrv) is not None

    def _is_registered(self) -> bool:
        return self.broker.encode() in (registered_brokers(self.namesrv) or b"")

    def close(self) -> None:
        """Kill both."""
        for process in (self._broker_process, self._namesrv_process):
            if process:
                process.kill()


def _write_logback(conf: Path) -> None:
    """RocketMQ 4 does not start without these."""
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("broker", "namesrv"):
        (conf / f"logback_{name}.xml").write_text("<configuration/>\n")


def mqadmin(namesrv: str, *arguments: str, home: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run ``mqadmin <subcommand> … -n namesrv``, against whichever broker, and return what it printed.

    Mind that ``mqadmin`` ends with 0 even when it failed: look at the output. What its logging library
    says about its own configuration is left out.
    """
    main_class = "org.apache.rocketmq.tools.command.MQAdminStartup"
    options = ("-Xmx256m", f"-Drocketmq.home.dir={home}", "-cp", server_classpath(), main_class)
    command = (*java_command(*options, home=home), *arguments, "-n", namesrv)
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=home)
    done.stdout = LOGGING_NOISE.sub("", done.stdout)
    return done
