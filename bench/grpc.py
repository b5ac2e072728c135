"""The plugin ``grpc`` under the official Java client, beside any other server of the same protocol.

::

    python bench/grpc.py                                  the plugin alone
    python bench/grpc.py --against 127.0.0.1:8081         and, in turns, Apache's proxy that runs there

Each round is one run of the client: it warms up, sends with ``--flight`` messages on their way, then consumes all of it
with a push consumer. The other server has to run already and to have the topics ``bench-0``, ``bench-1``, … and the
groups of the same names. Plain connections, bodies of 128 bytes. The last column is what our broker used of the
processors for each call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # in the place of this folder, whose grpc.py is not gRPC's package

from tests.interop.grpc.broker import GrpcBroker  # noqa: E402
from tests.interop.grpc.clients import grpc_java  # noqa: E402


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def drive(endpoint: str, name: str, count: int, flight: int) -> dict[str, Any]:
    """One run of the client: what it says of sends and receives."""
    options = {"endpoint": endpoint, "topic": name, "group": name, "count": count, "flight": flight, "tls": "false"}
    words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    done = subprocess.run([*grpc_java(("-Xmx512m",)), "bench", *words], capture_output=True, text=True, check=True)
    return {event.pop("event"): event for event in map(json.loads, done.stdout.splitlines())}


def show(who: str, rounds: list[dict[str, Any]], extra: str = "") -> None:
    def middle(event: str, figure: str) -> float:
        return statistics.median(one[event][figure] for one in rounds)

    print(
        f"{who:<12} {middle('sends', 'rate'):9.0f} sends/s  p50 {middle('sends', 'p50_us') / 1000:7.2f} ms  "
        f"p99 {middle('sends', 'p99_us') / 1000:7.2f} ms  {middle('receives', 'rate'):9.0f} received/s  {extra}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", help="host:port of another server")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--flight", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with GrpcBroker(Path(folder)) as broker:
            started = time.monotonic() - began
            assert broker.process is not None
            pid = broker.process.pid
            used = cpu_seconds(pid)
            for number in range(options.rounds):
                ours.append(drive(broker.endpoint, f"bench-{number}", options.count, options.flight))
                if options.against:
                    theirs.append(drive(options.against, f"bench-{number}", options.count, options.flight))
            # Sends, those of the warm-up among them, and acknowledgements; receives bring up to 32 messages each.
            calls = options.rounds * (2 * options.count + max(options.count // 4, 500))
            cost = (cpu_seconds(pid) - used) / calls * 1e6
            extra = f"start {started:.2f} s  {resident_mib(pid):.0f} MiB  {cost:.0f} µs of CPU a call"
    show("verniermq", ours, extra)
    if theirs:
        show("other", theirs)


if __name__ == "__main__":
    main()
