"""Servers of etcd as processes, on ports of their own. Debian has it as ``etcd-server``; ``tests/interop/etcd.sh``."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson

from tests.campaign.host import LOOPBACK, Host
from tests.campaign.outcome import Skipped
from verniermq.testing.ports import held_port

READY_SECONDS = 60.0


@attrs.define(eq=False)
class EtcdServer:
    """One server, alone in its cluster or with others."""

    folder: Path
    name: str
    client: int
    peer: int
    host: Host = LOOPBACK
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host.address}:{self.client}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.host.address}:{self.peer}"

    def start(self, cluster: str) -> None:
        url, peer = self.url, self.peer_url
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "name": self.name, "data-dir": self.folder / "data", "listen-client-urls": url, "listen-peer-urls": peer,
            "advertise-client-urls": url, "initial-advertise-peer-urls": peer, "initial-cluster": cluster,
            "initial-cluster-state": "new",
        }  # fmt: skip
        command = [*self.host.within, "etcd", *(f"--{name}={value}" for name, value in options.items())]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()  # also one that is stopped
            self.process.wait()
            self.process = None


@attrs.define(eq=False)
class EtcdCluster:
    folder: Path
    count: int = 1
    hosts: Sequence[Host] = ()
    """Where they are, if not on this one."""
    servers: list[EtcdServer] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if shutil.which("etcd") is None:
            raise Skipped("there is no etcd on this machine; tests/interop/etcd.sh installs it")
        for number in range(self.count):
            host = self.hosts[number] if self.hosts else LOOPBACK
            owner: Any = EtcdServer(self.folder / f"etcd{number}", f"e{number}", 0, 0, host)
            owner.client, owner.peer = held_port(owner), held_port(owner)
            self.servers.append(owner)

    def __enter__(self) -> EtcdCluster:
        for server in self.servers:
            server.start(self.cluster)
        self.wait()
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.servers:
            server.kill()

    @property
    def cluster(self) -> str:
        return ",".join(f"{server.name}={server.peer_url}" for server in self.servers)

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def leader(self) -> EtcdServer | None:
        """The one that leads, by any that answers."""
        ids = {}
        for server in self.servers:
            with contextlib.suppress(OSError, ValueError, KeyError):
                request = urllib.request.Request(f"{server.url}/v3/maintenance/status", b"{}", method="POST")
                with urllib.request.urlopen(request, timeout=1) as answer:
                    told = orjson.loads(answer.read())
                    ids[server.name] = (told["header"]["member_id"], told["leader"])
        leaders = {leader for _, leader in ids.values()}
        return next((server for server in self.servers if ids.get(server.name, ("", ""))[0] in leaders), None)

    def wait(self) -> None:
        """Until all answer."""
        deadline = time.monotonic() + READY_SECONDS
        for server in self.servers:
            while True:
                try:
                    with urllib.request.urlopen(f"{server.url}/health", timeout=2) as answer:
                        if b"true" in answer.read():
                            break
                except (OSError, urllib.error.URLError):
                    pass
                if time.monotonic() > deadline:
                    raise TimeoutError(f"etcd at {server.url} is not there after {READY_SECONDS:g} s")
                time.sleep(0.05)
