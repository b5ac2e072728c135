"""``python -m tests.campaign``: run rounds until the time is over, and write down what they found."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import attrs
import click

from tests.campaign import report, results
from tests.campaign.kinds import KINDS
from tests.campaign.outcome import Kind, Outcome, Skipped

BATCH_SECONDS = 120.0
"""A line of results covers about this much; what was not written yet is lost with the runner."""


@attrs.define
class Runner:
    """Rounds of some kinds, one after the other, each with an equal share of the time."""

    results: Path
    """The folder of the files of results."""
    keep: Path | None = None
    """Where the files of failed rounds are kept."""
    done: dict[str, Outcome] = attrs.field(factory=dict)
    skipped: dict[str, str] = attrs.field(factory=dict)

    def run(self, kind: Kind, seconds: float, seed: int | None, first: int | None = None) -> None:
        whole = self.done.setdefault(kind.name, Outcome(rounds=0))
        deadline, path = time.monotonic() + seconds, self.results / kind.record
        number = seed or first or results.next_seed(kind.name, path)
        while True:
            first, began, batch = number, time.monotonic(), Outcome(rounds=0)
            try:
                while True:
                    batch.add(self.one(kind, number))
                    number += 1
                    self._show(kind, number - 1, whole, batch)
                    if seed is not None or time.monotonic() > min(deadline, began + BATCH_SECONDS):
                        break
            except Skipped as why:
                self.skipped[kind.name] = str(why)
                return
            line = results.line_of(kind.name, first, number - 1, batch, time.monotonic() - began)
            if seed is None:
                results.append(line, path)
            whole.add(batch)
            if seed is not None or time.monotonic() > deadline:
                return

    def one(self, kind: Kind, seed: int) -> Outcome:
        folder = Path(tempfile.mkdtemp(prefix=f"campaign-{kind.name}-{seed}-"))
        try:
            outcome = kind.run(seed, folder)
        except Skipped:
            raise
        except Exception:
            traceback.print_exc()
            outcome = Outcome()
            outcome.fail("wrong", f"seed {seed}: the round ended with {traceback.format_exc(limit=-2)}")
        for failure in outcome.failures[:20]:
            click.echo(f"\r\033[K{kind.name} seed {seed}: {failure.category}: {failure.text}")
        if outcome.failures and self.keep is not None:
            kept = self.keep / f"{kind.name}-{seed}"
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(folder, kept)
        shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def _show(self, kind: Kind, seed: int, whole: Outcome, batch: Outcome) -> None:
        rounds, checked = whole.rounds + batch.rounds, whole.checked + batch.checked
        failures = len(whole.failures) + len(batch.failures)
        text = f"{kind.name}: seed {seed}, {rounds} rounds, {checked} {kind.unit}, {failures} failures"
        if sys.stdout.isatty():
            click.echo(f"\r\033[K{text}", nl=False)


@click.command()
@click.option("--minutes", default=10.0, help="How long, all kinds together.")
@click.option("--kinds", default="all", help="Which, separated by commas.")
@click.option("--seed", type=int, help="One round with this seed for each kind; nothing is written down.")
@click.option("--first", type=int, help="The first seed; else the first that is not on record.")
@click.option(
    "--results",
    "path",
    type=click.Path(path_type=Path),
    default=results.RESULTS,
    help="The folder of the files of results.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the files of failed rounds there.")
@click.option("--list", "only_list", is_flag=True, help="Say which kinds there are.")
def main(
    minutes: float, kinds: str, seed: int | None, first: int | None, path: Path, keep: Path | None, only_list: bool
) -> None:
    """Kill, fill, damage, attack and fuzz a broker for some minutes, and check what it promises."""
    if only_list:
        for kind in KINDS.values():
            click.echo(f"{kind.name:<12} {kind.promise}")
        return
    names = list(KINDS) if kinds == "all" else kinds.split(",")
    if unknown := [name for name in names if name not in KINDS]:
        raise click.BadParameter(f"{unknown[0]!r} is not a kind; there are {', '.join(KINDS)}", param_hint="--kinds")
    logging.disable(logging.CRITICAL)  # what is killed, damaged and attacked has a lot to say; rounds read it elsewhere
    runner = Runner(path, keep)
    for name in names:
        click.echo(f"{name}: {KINDS[name].promise}")
        runner.run(KINDS[name], minutes * 60 / len(names), seed, first)
        if sys.stdout.isatty():
            click.echo("\r\033[K", nl=False)
        if name in runner.skipped:
            click.echo(f"  skipped: {runner.skipped[name]}")
    click.echo(report.table({name: runner.done[name] for name in names if name not in runner.skipped}))
    if seed is None and path == results.RESULTS:
        report.write()
    failed = sum(len(outcome.failures) for outcome in runner.done.values())
    if failed:
        click.echo(f"{failed} failures; a round again: make campaign KINDS=<kind> SEED=<seed>")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
