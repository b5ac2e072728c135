"""The plugin ``grpc`` under the official Java client, beside Apache's proxy 5.5.0 in local mode, in turns.

::

    python bench/grpc.py                   both, into bench/results/grpc.json
    python bench/grpc.py --alone           the plugin alone

Each round is one run of the client: it warms up, sends with ``--flight`` messages on their way, then consumes all of it
with a push consumer. Plain connections, bodies of 128 bytes. Apache's proxy has a heap of 1 GiB and the options of its
own start script. Memory is what all its processes have resident at the end, the name server's among them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # in the place of this folder, whose grpc.py is not gRPC's package

from bench.sidebyside.brokers import ITS_OWN  # noqa: E402
from tests.interop.grpc.apacheproxy import ApacheProxy, proxy_classpath  # noqa: E402
from tests.interop.grpc.broker import GrpcBroker  # noqa: E402
from tests.interop.grpc.clients import grpc_java  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "grpc.json"


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


class Side:
    """One of the two, and its figures."""

    def __init__(self, name: str, server: Any, started: float, pids: list[int]) -> None:
        self.name, self.server, self.started, self.pids = name, server, started, pids
        self.rounds: list[dict[str, Any]] = []
        self._endpoint = server.endpoint

    def run(self, number: int, count: int, flight: int, endpoint: str = "") -> None:
        name = f"bench-{number}"
        if isinstance(self.server, ApacheProxy):
            self.server.make(name)
        used = sum(map(cpu_seconds, self.pids))
        figures = drive(endpoint or self._endpoint, name, count, flight)
        # Sends, those of the warm-up among them, and acknowledgements; receives bring up to 32 messages each.
        calls = 2 * count + max(count // 4, 500)
        figures["cpu_us_per_call"] = (sum(map(cpu_seconds, self.pids)) - used) / calls * 1e6
        self.rounds.append(figures)

    def summary(self) -> dict[str, float]:
        def middle(event: str, figure: str) -> float:
            return statistics.median(one[event][figure] for one in self.rounds)

        return {
            "sends_per_s": round(middle("sends", "rate")),
            "p50_ms": round(middle("sends", "p50_us") / 1000, 2),
            "p99_ms": round(middle("sends", "p99_us") / 1000, 2),
            "received_per_s": round(middle("receives", "rate")),
            "cpu_us_per_call": round(statistics.median(one["cpu_us_per_call"] for one in self.rounds)),
            "start_s": round(self.started, 2),
            "memory_mib": round(sum(map(resident_mib, self.pids))),
        }


def drive(endpoint: str, name: str, count: int, flight: int) -> dict[str, Any]:
    """One run of the client: what it says of sends and receives."""
    options = {"endpoint": endpoint, "topic": name, "group": name, "count": count, "flight": flight, "tls": "false"}
    words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    done = subprocess.run([*grpc_java(("-Xmx512m",)), "bench", *words], capture_output=True, text=True, check=True)
    return {event.pop("event"): event for event in map(json.loads, done.stdout.splitlines())}


def start_plugin(stack: ExitStack, folder: Path) -> Side:
    began = time.monotonic()
    broker = stack.enter_context(GrpcBroker(folder))
    assert broker.process is not None
    return Side("verniermq", broker, time.monotonic() - began, [broker.process.pid])


def start_apache(stack: ExitStack, folder: Path) -> Side:
    proxy_classpath()
    folder.mkdir()
    began = time.monotonic()
    proxy = stack.enter_context(ApacheProxy(folder, scale=ITS_OWN))
    return Side("apache", proxy, time.monotonic() - began, proxy.pids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--flight", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sides = [start_plugin(stack, Path(folder) / "verniermq")]
        if not options.alone:
            sides.append(start_apache(stack, Path(folder) / "apache"))
        for number in range(options.rounds):
            for side in sides:
                side.run(number, options.count, options.flight)
        figures = {side.name: side.summary() for side in sides}
    for name, row in figures.items():
        print(f"{name:<12} {'  '.join(f'{figure} {value}' for figure, value in row.items())}")
    if not options.alone:
        RESULTS.write_text(json.dumps({"options": vars(options), **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
