"""Puts the tables that benches wrote into ``bench/results/`` where they are read: ``bench/RESULTS.md``, ``README.md``.

A table replaces what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``; of a bench that did not run, everything
stays as it is. The sentences around the tables have to be read again; the rows that fall short are printed.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

HERE = Path(__file__).parent
RESULTS = HERE / "results"
IN_README = (
    "async send, 128 B", "batches of 32, 128 B", "consume a backlog", "send to receive at 2,000/s, p99 ",
    "resident memory, idle",
)  # fmt: skip
"""How the rows begin that the README has."""
TABLES = {
    "apache": "README-table.md",
    "ways": "ways-table.md",
    "cluster": "cluster-table.md",
    "others": "others-table.md",
}


def put(path: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of a name."""
    page = path.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise click.ClickException(f"{path} has no {begin.strip()} … {end}")
    path.write_text(f"{before}{begin}{text.strip()}\n{end}{after}")


def rows_of(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith("|")]


@click.command(help=__doc__)
def main() -> None:
    for name, file in TABLES.items():
        if (RESULTS / file).exists():
            put(HERE / "RESULTS.md", name, (RESULTS / file).read_text())
            click.echo(f"{file} is in bench/RESULTS.md")
    table = (RESULTS / TABLES["apache"]).read_text()
    head, *rows = rows_of(table)
    chosen = [next(row for row in rows if row.startswith(f"| {wanted}")) for wanted in IN_README]
    day = re.search(r"\d{4}-\d\d-\d\d", table)
    put(HERE.parent / "README.md", "figures", "\n".join([head, rows[0], *chosen]))
    page = HERE.parent / "README.md"
    page.write_text(re.sub(r"has all \d+ rows", f"has all {len(rows) - 1} rows", page.read_text()))
    if day:
        page.write_text(
            re.sub(r"Measured on \d{4}-\d\d-\d\d; the same", f"Measured on {day[0]}; the same", page.read_text())
        )
    click.echo(next(line for line in table.splitlines() if "short of" in line.lower()))


if __name__ == "__main__":
    main()
