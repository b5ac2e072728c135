"""Hosts of one bridge, each a network namespace, whose packets to one another can be dropped one way or both.

All of it lives in namespaces of one process and its children, and is gone with them: :func:`enter` starts it. Needs
root, and the packages that ``tests/interop/namespaces.sh`` installs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import count

import attrs

from tests.campaign.host import Host
from tests.campaign.outcome import Skipped

HOSTS = "10.99.0.0/24"
BRIDGE = "10.99.0.254"


def enter(module: str, *arguments: str) -> bytes:
    """Run a module in namespaces of its own, with all that it starts; what it printed.

    Raises:
        Skipped: this machine does not allow it.
    """
    missing = [name for name in ("ip", "nft", "unshare") if shutil.which(name) is None]
    if missing or os.geteuid():
        raise Skipped(f"needs root, and {', '.join(missing) or 'nothing more'}: tests/interop/namespaces.sh")
    own = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        raise Skipped("this machine allows no namespaces")
    done = subprocess.run([*own, sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, check=True)
    return done.stdout


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@attrs.define(eq=False)
class Network:
    """The bridge, and this process on it."""

    hosts: dict[str, Host] = attrs.field(factory=dict)
    _numbers: count[int] = attrs.field(factory=lambda: count(1), init=False)

    def __attrs_post_init__(self) -> None:
        os.makedirs("/run/netns", exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", "/run/netns")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "bridge", "type", "bridge")
        _run("ip", "address", "add", f"{BRIDGE}/24", "dev", "bridge")
        _run("ip", "link", "set", "bridge", "up")

    def add(self, name: str) -> Host:
        number = next(self._numbers)
        address = f"10.99.0.{number}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"to-{name}", "master", "bridge", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        self._nft(name, "add table ip filter")
        self._nft(name, "add chain ip filter input { type filter hook input priority 0; }")
        host = self.hosts[name] = Host(address, ("ip", "netns", "exec", name))
        return host

    def deafen(self, name: str, *others: str) -> None:
        """Drop what comes to a host from others."""
        for other in others:
            self._nft(name, f"add rule ip filter input ip saddr {self.hosts[other].address} drop")

    def part(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Let nothing through between them, in either direction."""
        for name in some:
            self.deafen(name, *others)
        for name in others:
            self.deafen(name, *some)

    def heal(self) -> None:
        for name in self.hosts:
            self._nft(name, "flush chain ip filter input")

    @staticmethod
    def _nft(name: str, words: str) -> None:
        _run("ip", "netns", "exec", name, "nft", words)
