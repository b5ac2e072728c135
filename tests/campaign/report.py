"""``python -m tests.campaign.report``: the table of results, as text and in ``docs/reliability.md``."""

from __future__ import annotations

from typing import Any

from tests.campaign import findings, results
from tests.campaign.findings import Finding
from tests.campaign.kinds import KINDS
from tests.campaign.outcome import Kind, Outcome

PAGE = results.ROOT / "docs" / "reliability.md"
REPLICATION = results.ROOT / "docs" / "replication.md"
BEGIN, END = "<!-- written by python -m tests.campaign.report -->", "<!-- until here -->"


def _wait(outcome: Outcome) -> str:
    if not outcome.control_ms:
        return "–"
    return f"{outcome.stall_ms:.0f}/{outcome.control_ms:.0f}"


def table(done: dict[str, Outcome]) -> str:
    """One row for each kind, at most 80 columns."""
    head = f"{'kind':<11} {'rounds':>7} {'checked':>21} {'lost':>5} {'wrong':>5} {'passed':>6}"
    lines = [f"{head} {'stall/control ms':>16}"]
    for name, outcome in done.items():
        checked = f"{outcome.checked:,} {KINDS[name].unit}"
        lines.append(
            f"{name:<11} {outcome.rounds:>7,} {checked:>21} {outcome.count('lost'):>5} {outcome.count('wrong'):>5} "
            f"{outcome.count('passed'):>6} {_wait(outcome):>16}"
        )
        notes = ", ".join(f"{count:,} {what}" for what, count in sorted(outcome.notes.items()))
        if notes:
            lines.append(f"            ({notes})"[:80])
    return "\n".join(lines)


def markdown(lines: list[dict[str, Any]], found: list[Finding]) -> str:
    """The page's part that is made from the results and the findings."""
    rows = [
        "Rounds since the last defect of the kind was mended:",
        "",
        "| kind | rounds | checked | lost | wrong | passed | stalled | longest wait, control | longest hold, control "
        "| compiled | all rounds | commits | dates |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for name, kind in KINDS.items():
        own = [line for line in lines if line["kind"] == name]
        if own:
            rows.append(_row(kind, own, findings.since_mended(own, name, found)))
    rows += ["", f"Machines: {'; '.join(sorted({line['machine'] for line in lines})) or 'none yet'}.", ""]
    opened = [line for line in lines if line["failures"] and not findings.explained(line, found)]
    if opened:
        rows += ["Failures that are open:", ""]
        for line in opened:
            text = line["failures"][0].replace("|", "/").replace("`", "'")
            rows.append(f"- {line['date'][:10]}, {line['commit']}, {line['kind']}: `{text[:160]}`")
    else:
        rows += ["No failure on record is open."]
    if found:
        rows += ["", "What was found and mended:", ""]
    for finding in found:
        seeds = f", seed{'s' * (len(finding.seeds) > 1)} {', '.join(map(str, finding.seeds))}" if finding.seeds else ""
        seen = f"seen at {finding.commit}{seeds}, mended {finding.date} by {finding.mended}"
        rows.append(f"- {finding.kind}, {seen}: {finding.was}.")
    return "\n".join(rows)


def _row(kind: Kind, own: list[dict[str, Any]], counted: list[dict[str, Any]]) -> str:
    whole = results.total(counted)
    stall = f"{whole.stall_ms:.0f} ms, {whole.control_ms:.0f} ms" if whole.control_ms else "–"
    hold = f"{whole.hold_ms:.0f} ms, {whole.hold_control_ms:.0f} ms" if whole.hold_ms else "–"
    compiled = sum(line["rounds"] for line in counted if line.get("path") == "compiled")
    commits = list(dict.fromkeys(line["commit"] for line in counted)) or ["–"]
    shown = commits[0] if len(commits) == 1 else f"{commits[0]} … {commits[-1]}"
    days = sorted({line["date"][:10] for line in counted}) or ["–"]
    dates = days[0] if len(days) == 1 else f"{days[0]} … {days[-1]}"
    return (
        f"| {kind.name} | {whole.rounds:,} | {whole.checked:,} {kind.unit} | {whole.count('lost')} | "
        f"{whole.count('wrong')} | {whole.count('passed')} | {whole.count('stalled')} | {stall} | {hold} | "
        f"{compiled:,} | {sum(line['rounds'] for line in own):,} | {shown} | {dates} |"
    )


def on_record() -> list[dict[str, Any]]:
    """All lines of all kinds."""
    files = sorted({kind.record for kind in KINDS.values()})
    return [line for name in files for line in results.read(results.RESULTS / name)]


def blows(lines: list[dict[str, Any]]) -> str:
    """How often replicas were struck by what, for their own page."""
    own = [line for line in lines if line["kind"] in ("failover", "network")]
    whole = results.total(own)
    struck = [
        (count, name) for name, count in whole.notes.items()
        if not name.startswith(("sends:", "longest", "bytes", "starts", "power cuts that"))
    ]  # fmt: skip
    days = sorted({line["date"][:10] for line in own})
    rows = [
        f"{whole.rounds:,} blows, {days[0] if days else ''} to {days[-1] if days else ''}, "
        f"{'; '.join(sorted({line['machine'] for line in own}))}: {whole.notes['sends: ok']:,} sends acknowledged, "
        f"{whole.checked:,} messages read, {whole.count('lost')} lost. {whole.count('wrong')} "
        "rounds failed otherwise; [reliability](reliability.md) says why.",
        "",
        "| blow | times |",
        "|---|--:|",
    ]
    rows += [f"| {name} | {count:,} |" for count, name in sorted(struck, reverse=True)]
    return "\n".join(rows)


def write() -> None:
    """Put the tables into their pages, in the place of the old ones."""
    lines = on_record()
    for page, text in ((PAGE, markdown(lines, findings.read())), (REPLICATION, blows(lines))):
        head, _, rest = page.read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        page.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")


if __name__ == "__main__":
    write()
