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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from verniermq.kernel.config.environment import PURE_VARIABLE

FOLDERS = ("kernel", "protocol", "plugins", "client", "cli", "testing", "contrib")
PROGRAM = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in repr(one)]  # it would lead to our own sources
from verniermq.{room} import main
main(["broker", "--port", "0", "--namesrv-port", "0", "--store", "store"])
"""


class Idle(NamedTuple):
    resident_kib: int
    private_kib: int
    modules: int
    cpu_ms: int


def links(sources: Path, folder: Path) -> str:
    """A folder in which the sources are a package."""
    package = folder / "verniermq"
    package.mkdir(parents=True)
    for name in FOLDERS:
        if (sources / name).is_dir():
            (package / name).symlink_to(sources / name)
    return str(folder)


def started(room: str, path: str, pure: bool, seconds: float, *options: str) -> Idle:
    """A broker's figures once it has rested for so long; ``modules`` with ``-X importtime`` only."""
    environment = {**os.environ, "PYTHONPATH": path, **({PURE_VARIABLE: "1"} if pure else {})}
    command = [sys.executable, *options, "-c", PROGRAM.format(room=room)]
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w+") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=said)
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
    here = Path(__file__).resolve().parent.parent
    found: dict[str, list[Idle]] = {}
    modules: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"here": (here, pure)} | ({"against": (against.resolve(), False)} if against is not None else {})
        paths = {kind: links(sources, Path(folder) / kind) for kind, (sources, _) in kinds.items()}
        rooms = {kind: "cli" if (sources / "cli").is_dir() else "kernel.cli" for kind, (sources, _) in kinds.items()}
        for kind, (_, is_pure) in kinds.items():  # compiled to bytecode by this one
            modules[kind] = started(rooms[kind], paths[kind], is_pure, 2 * seconds, "-X", "importtime").modules
        for _ in range(rounds):
            for kind, (_, is_pure) in kinds.items():
                found.setdefault(kind, []).append(started(rooms[kind], paths[kind], is_pure, seconds))
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
