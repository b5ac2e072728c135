"""What a broker with its defaults needs before anybody has sent anything: memory, modules and CPU time of a start.

``python bench/idle.py`` starts ``verniermq broker`` a few times on free ports, each time with an empty store, waits
until it rests, and prints the middle of each figure. ``--against`` takes the sources of another commit (a folder, as
``git worktree add`` makes one) and measures both in turns, with the same Python; ``--pure`` measures ours without what
is compiled.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
from sources import Sources


class Idle(NamedTuple):
    resident_kib: int
    private_kib: int
    modules: int
    cpu_ms: int


def started(sources: Sources, links: Path, seconds: float, *options: str) -> Idle:
    """A broker's figures once it has rested for so long; ``modules`` with ``-X importtime`` only."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w+") as said:
        process = sources.process(links, "--store", "store", options=options, cwd=folder, stderr=said)
        try:
            time.sleep(seconds)
            if process.poll() is not None:
                said.seek(0)
                raise click.ClickException(said.read())
            proc = Path(f"/proc/{process.pid}")
            memory = (proc / "smaps_rollup").read_text()
            ticks = (proc / "stat").read_text().rsplit(")")[1].split()[11:13]
        finally:
            process.terminate()
            process.wait()
        said.seek(0)
        text = said.read()
    resident, private = (int(re.search(rf"{name}:\s+(\d+)", memory)[1]) for name in ("Rss", "Private_Dirty"))  # type: ignore[index]
    modules = text.count("import time:") - 1  # its head line
    return Idle(resident, private, modules, sum(map(int, ticks)) * 1000 // os.sysconf("SC_CLK_TCK"))


@click.command(help=__doc__)
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="The sources of another commit.")
@click.option("--rounds", default=5, show_default=True, help="How often each is started, in turns.")
@click.option("--seconds", default=4.0, show_default=True, help="How long each rests.")
@click.option("--pure", is_flag=True, help="Ours without what is compiled.")
def main(against: Path | None, rounds: int, seconds: float, pure: bool) -> None:
    kinds = {"here": Sources(Path(__file__).resolve().parent.parent, pure)}
    if against is not None:
        kinds["against"] = Sources(against)
    found: dict[str, list[Idle]] = {}
    modules: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, sources in kinds.items():  # compiled to bytecode by this one
            modules[kind] = started(sources, Path(folder) / kind, 2 * seconds, "-X", "importtime").modules
        for _ in range(rounds):
            for kind, sources in kinds.items():
                found.setdefault(kind, []).append(started(sources, Path(folder) / kind, seconds))
    middle = {kind: Idle(*(int(statistics.median(column)) for column in zip(*rows, strict=True)))
              for kind, rows in found.items()}  # fmt: skip
    click.echo(f"Python {sys.version.split()[0]}, {rounds} starts each")
    for kind, idle in middle.items():
        click.echo(
            f"{kind:8} resident {idle.resident_kib / 1024:6.2f} MiB  of it private {idle.private_kib / 1024:6.2f} MiB"
            f"  {modules[kind]} imports  {idle.cpu_ms} ms of CPU"
        )
    if against is not None:
        ratios = [ours / theirs for ours, theirs in zip(middle["here"], middle["against"], strict=True)][:2]
        click.echo(f"ratio    resident {ratios[0]:.3f}  private {ratios[1]:.3f}")


if __name__ == "__main__":
    main()
