"""VernierMQ side by side with Apache RocketMQ: speed, latency, memory, start and restart.

``make bench`` runs it. Both brokers run one after the other, round by round, and are driven by the same official Java
client. It prints the ratios VernierMQ ÷ Apache and writes ``apache.json``, ``apache.svg`` and ``README-table.md`` into
``bench/results/`` (with ``--quick`` or ``--rows``, into ``bench/results/partial/``).

    make bench                                          all rows, 3 rounds: about 45 minutes, on a machine that is quiet
    python bench/apache.py --quick                      the same in under 3 minutes, for a first impression
    python bench/apache.py --short --rounds 2           all rows, a third as long each: about 15 minutes
    python bench/apache.py --rows send-16,latency       the rows whose names begin so
    python bench/apache.py --rounds 1 --more            one more round, beside those that the last such run kept

``--plain`` and ``--python NAME=PATH`` (of an environment that has VernierMQ) measure some rows of VernierMQ without
what is compiled, and by another Python, in the same rounds; ``ways-table.md`` has them.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # the interop suite's Apache broker and Java driver
# ruff: noqa: E402

from sidebyside.brokers import PLAIN, SIDES, MakeSide, VernierMQ
from sidebyside.chart import draw
from sidebyside.driver import LoadDriver
from sidebyside.results import Rounds, kept_rounds, save, summarise, table
from sidebyside.round import FULL, QUICK, SHORT, WARMING_UP, Extent, Round
from sidebyside.rows import TELLING, choose, rows_for_warming_up


@attrs.define
class Display:
    """A bar for all rows of all rounds, and beside it what is being done; without a terminal, a line for each step."""

    progress: Progress
    total: int
    finished: int = 0
    _task: TaskID = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._task = self.progress.add_task("", total=self.total)

    def note(self, about: str, what: str, measured: int) -> None:
        text = f"{about}: {what}"
        self.progress.update(self._task, description=f"{text:50.50}", completed=self.finished + measured)
        if not self.progress.console.is_terminal:
            elapsed = self.progress.tasks[self._task].elapsed or 0
            self.progress.console.print(f"{elapsed:6.1f} s  {text}", highlight=False)


def measure(
    extent: Extent, rounds: int, rows: set[str], others: dict[str, MakeSide], console: Console, earlier: Rounds
) -> Rounds:
    """Each side's rounds, behind earlier ones; who begins changes from round to round. Of ``others`` some rows are
    measured."""
    sides = {name: (make, rows) for name, make in SIDES.items()}
    sides |= {name: (make, rows & TELLING) for name, make in others.items()}
    results: Rounds = {name: list(earlier.get(name, ())) for name in (*sides, *earlier)}
    first = len(results["Apache"])
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="verniermq-bench-") as folder,
        LoadDriver(Path(folder)) as driver,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        display = Display(progress, rounds * sum(len(chosen) for _, chosen in sides.values()))
        # The client is compiled before anybody is measured with it: the first one would pay for the second.
        about_client = partial(display.note, "warming up the client")
        Round(SIDES["VernierMQ"], driver, WARMING_UP, rows_for_warming_up(), about_client).run()
        for number in range(first, first + rounds):
            for name, (make, chosen) in list(sides.items())[:: -1 if number % 2 else 1]:
                note = partial(display.note, f"round {number + 1}/{first + rounds}, {name}")
                results[name].append(Round(make, driver, extent, chosen, note).run())
                display.finished += len(chosen)
    return results


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="One round of short measurements.")
@click.option("--rounds", type=click.IntRange(min=1), help="How often: 3, or 1 with --quick.")
@click.option("--rows", "names", help="Rows to measure, by the beginnings of their names, with commas.")
@click.option("--more", is_flag=True, help="Add the rounds to those that the last such run kept.")
@click.option("--short", is_flag=True, help="All rows, with a third of the time for each, and a smaller backlog.")
@click.option("--plain", is_flag=True, help="Some rows without what is compiled, too.")
@click.option("--python", "pythons", multiple=True, metavar="NAME=PATH", help="Some rows by another Python, too.")
def main(
    quick: bool, rounds: int | None, names: str | None, more: bool, short: bool, plain: bool, pythons: tuple[str, ...]
) -> None:
    # Ended from outside, it still ends what it started: the brokers do not share its fate.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Set where disks are thrown away after use; everywhere else Python compiles a file once, and not at every start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        rows = choose(names)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    extent = QUICK if quick else SHORT if short else FULL
    folder = HERE / "results" / ("partial" if quick or names else "")
    try:
        earlier, version = kept_rounds(folder, extent) if more else ({}, "")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    others: dict[str, MakeSide] = {"plain": PLAIN} if plain else {}
    for each in pythons:
        name, is_pair, path = each.partition("=")
        if not is_pair or not Path(path).exists():
            raise click.UsageError(f"--python {each}: expected NAME=PATH, and a file there")
        others[name] = partial(VernierMQ, python=(path,))
    results = measure(extent, rounds or (1 if quick else 3), rows, others, console, earlier)
    chart = draw(summarise(results, extent), "VernierMQ beside Apache RocketMQ, one machine, one client")
    lines = save(folder, results, extent, chart, version)
    console.print(table(lines, results))
    for line in lines:
        if line.ratio is None:
            console.print(f"not comparable: {line.row.title}; {line.losses}")
        elif line.is_short:
            console.print(f"short of {line.row.aim}: {line.row.title} with {line.ratio:.2f}")
    console.print(f"written: {folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}")


if __name__ == "__main__":
    main()
