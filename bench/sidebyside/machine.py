"""What processes use of the machine, and what the machine is."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from verniermq.kernel.accel.lane import compiled_lane

MIB = 2**20
SCHEDULER_CLOCK = 2
"""Of the clocks that Linux has for each process, see ``clock_getcpuclockid(3)``."""


class Memory(NamedTuple):
    """Of several processes together, in MiB."""

    resident: float
    """With the pages of mapped files, of which the messages' log is one."""
    own: float
    """Without them."""


def memory(pids: Iterable[int]) -> Memory:
    resident = own = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        sizes = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if "kB" in value}
        resident += int(sizes["VmRSS"])
        own += int(sizes["RssAnon"])
    return Memory(resident / 1024, own / 1024)


def cpu_seconds(pids: Iterable[int]) -> float:
    """What processes have used so far, in user and in system mode, to the nanosecond."""
    return sum(time.clock_gettime(~pid << 3 | SCHEDULER_CLOCK) for pid in pids)


def written_bytes(folder: Path) -> int:
    """What the files of a folder really take: brokers make them larger than what is in them."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def description() -> dict[str, str]:
    cpu = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "")
    total = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.partition("\n")[0]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
    ).stdout.strip()
    return {
        "processors": f"{os.cpu_count()} × {cpu or platform.machine()}",
        "memory": f"{total * 1024 / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "path": "plain" if compiled_lane() is None else "compiled",
        "java": java,
        "verniermq": f"{version('verniermq')} ({commit})",
        "rocketmq": "5.5.0",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
