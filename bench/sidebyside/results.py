"""The figures of all rounds: summed up, printed, and written to ``bench/results/``."""

from __future__ import annotations

import json
import statistics
from datetime import UTC, datetime
from pathlib import Path

import attrs
from rich.table import Table

from sidebyside.machine import description
from sidebyside.round import Extent, Measured
from sidebyside.rows import ROWS, Row

Rounds = dict[str, list[dict[str, Measured]]]
"""For each side, its rounds in order."""


@attrs.frozen
class Line:
    """One row over all rounds: the middle of each side, their ratio, and the ratios of the single rounds.

    A round in which a side has no figure, because messages failed or did not come within 5 s, makes no ratio; a row
    without any ratio is neither reached nor missed, and says so.
    """

    row: Row
    apache: float | None
    ours: float | None
    ratios: list[float]
    lost_by_apache: int
    lost_by_us: int

    @property
    def ratio(self) -> float | None:
        return self.ours / self.apache if self.ours is not None and self.apache is not None else None

    @property
    def is_short(self) -> bool:
        return self.ratio is not None and self.row.falls_short(self.ratio)

    @property
    def is_reached(self) -> bool:
        return self.ratio is not None and bool(self.row.aim) and not self.is_short

    @property
    def spread(self) -> str:
        return f"{min(self.ratios):.2f}–{max(self.ratios):.2f}" if self.ratios else ""

    @property
    def losses(self) -> str:
        """Messages that were refused or did not come in time, by whom."""
        lost = {"Apache": self.lost_by_apache, "VernierMQ": self.lost_by_us}
        return ", ".join(f"{side} failed {count:,}" for side, count in lost.items() if count)


def kept_rounds(folder: Path, extent: Extent) -> tuple[Rounds, str]:
    """What an earlier run kept, to add rounds to, and which version it was of.

    Raises:
        ValueError: there is none, or it was of another length, or on another machine.
    """
    path = folder / "apache.json"
    if not path.exists():
        raise ValueError(f"{path} is not there: the first rounds come without --more")
    kept = json.loads(path.read_text())
    version = kept["machine"].pop("verniermq")
    if kept["extent"] != attrs.asdict(extent) or kept["machine"].items() - description().items():
        raise ValueError(f"{path} has rounds of another length, or of another machine: rounds cannot be added to them")
    return {
        side: [{name: Measured(**figure) for name, figure in one.items()} for one in all_of_it]
        for side, all_of_it in kept["rounds"].items()
    }, version


def summarise(rounds: Rounds, extent: Extent) -> list[Line]:
    lines = []
    stored = f"{extent.stored / 2**30:g} GiB" if extent.stored >= 2**30 else f"{extent.stored >> 20} MiB"
    for name, row in ROWS.items():
        theirs = [one[name] for one in rounds["Apache"] if name in one]
        ours = [one[name] for one in rounds["VernierMQ"] if name in one]
        if theirs and ours:
            both = zip([figure.value for figure in theirs], [figure.value for figure in ours], strict=True)
            lines.append(
                Line(
                    attrs.evolve(row, title=row.title.format(backlog=f"{extent.backlog:,}", stored=stored)),
                    _middle(theirs),
                    _middle(ours),
                    [our / their for their, our in both if their is not None and our is not None],
                    sum(figure.failed for figure in theirs),
                    sum(figure.failed for figure in ours),
                )
            )
    return lines


def _middle(figures: list[Measured]) -> float | None:
    """The middle round; ``None`` if one has no figure, so that messages that fail never help."""
    known = [figure.value for figure in figures if figure.value is not None]
    return statistics.median(known) if len(known) == len(figures) else None


def amount(value: float | None, unit: str) -> str:
    if value is None:
        return "not all came"
    digits = 0 if value >= 100 or unit == "messages/s" else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def _ratio(line: Line) -> str:
    return "–" if line.ratio is None else f"{line.ratio:.2f}"


def table(lines: list[Line], rounds: Rounds) -> Table:
    made = Table(title="VernierMQ ÷ Apache RocketMQ")
    for column in ("", "Apache", "VernierMQ", "ratio", "rounds", "aim", "CPU a message"):
        made.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for line in lines:
        colour = "red" if line.is_short else "green" if line.is_reached else ""
        ratio = f"[{colour}]{_ratio(line)}[/]" if colour else _ratio(line)
        title = line.row.title + (f" [yellow]({line.losses})[/]" if line.losses else "")
        made.add_row(
            title, amount(line.apache, line.row.unit), amount(line.ours, line.row.unit), ratio, line.spread,
            line.row.aim, processor_share(line.row.name, rounds),
        )  # fmt: skip
    return made


def processor_share(name: str, rounds: Rounds) -> str:
    """Microseconds that broker and client used for a message, on Apache's side → on ours."""

    def middle(side: str) -> str:
        known = [round_[name] for round_ in rounds[side] if name in round_]
        of_broker = [figure.broker_cpu for figure in known if figure.broker_cpu is not None]
        of_driver = [figure.driver_cpu for figure in known if figure.driver_cpu is not None]
        if not of_broker:
            return ""
        return f"{statistics.median(of_broker):.0f}+{statistics.median(of_driver):.0f}"

    theirs, ours = middle("Apache"), middle("VernierMQ")
    return f"{theirs} → {ours} µs" if theirs else ""


def markdown(lines: list[Line], extent: Extent, count: int, facts: dict[str, str], day: str) -> str:
    """The table of the README."""
    out = [
        f"Measured on {day} by `make bench`, {count} round{'s'[: count > 1]} in turns, {extent.seconds:g} s a rate, "
        f"the middle of the rounds; {facts['processors']}, {facts['memory']}, {facts['system']}, {facts['python']} "
        f"({facts['path']} path), Apache RocketMQ {facts['rocketmq']} with a heap of "
        "1 GiB; client and broker share the processors.",
        "",
        "| | Apache | VernierMQ | ratio | aim |",
        "|---|--:|--:|--:|--:|",
    ]
    for line in lines:
        ratio = f"**{_ratio(line)}**" if line.is_reached else _ratio(line)
        title = line.row.title + (f" ({line.losses})" if line.losses else "")
        out.append(
            f"| {title} | {amount(line.apache, line.row.unit)} | {amount(line.ours, line.row.unit)} "
            f"| {ratio} | {line.row.aim} |"
        )
    short = [line.row.title for line in lines if line.is_short]
    unknown = [line.row.title for line in lines if line.ratio is None]
    out += ["", f"Short of the aim: {'; '.join(short)}." if short else "No row is short of its aim."]
    if unknown:
        out.append(f"Not comparable, since not all messages were taken or came in time: {'; '.join(unknown)}.")
    return "\n".join([*out, ""])


def others_markdown(rounds: Rounds) -> str:
    """Rows that were measured of other ways to run VernierMQ too: messages a second, and the ratio to Apache's."""
    sides = [side for side in rounds if side != "Apache"]
    names = [name for name in ROWS if any(name in one for side in sides[1:] for one in rounds[side])]
    if not names:
        return ""
    out = ["| messages/s | Apache | " + " | ".join(sides) + " |", "|---|--:|" + "--:|" * len(sides)]
    for name in names:
        theirs = _middle([one[name] for one in rounds["Apache"] if name in one])
        cells = [f"{theirs:,.0f}" if theirs else "not all came"]
        for side in sides:
            ours = _middle([one[name] for one in rounds[side] if name in one])
            cells.append(f"{ours:,.0f} ({ours / theirs:.2f})" if ours and theirs else "not all came")
        out.append(f"| {ROWS[name].title} | " + " | ".join(cells) + " |")
    return "\n".join([*out, ""])


def save(folder: Path, rounds: Rounds, extent: Extent, chart: str, earlier: str = "") -> list[Line]:
    """Write JSON, chart and the README's table; returns the rows. ``earlier`` is the version of the first rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = summarise(rounds, extent)
    facts, now = description(), datetime.now(UTC)
    if earlier and facts["verniermq"] not in earlier:
        earlier += ", " + facts["verniermq"]
    facts["verniermq"] = earlier or facts["verniermq"]
    everything = {
        "measured": now.isoformat(timespec="seconds"),
        "machine": facts,
        "extent": attrs.asdict(extent),
        "rows": {
            line.row.name: {
                "title": line.row.title, "unit": line.row.unit, "apache": line.apache, "verniermq": line.ours,
                "ratio": line.ratio, "ratios": line.ratios, "aim": line.row.aim, "short": line.is_short,
                "failed": {"apache": line.lost_by_apache, "verniermq": line.lost_by_us},
            }
            for line in lines
        },
        "rounds": {
            side: [{name: attrs.asdict(figure) for name, figure in one.items()} for one in all_of_it]
            for side, all_of_it in rounds.items()
        },
    }  # fmt: skip
    (folder / "apache.json").write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
    (folder / "apache.svg").write_text(chart, encoding="utf-8")
    (folder / "README-table.md").write_text(
        markdown(lines, extent, len(rounds["Apache"]), facts, now.date().isoformat())
    )
    if others := others_markdown(rounds):
        (folder / "ways-table.md").write_text(others)
    return lines
