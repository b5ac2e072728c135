"""How long the pages of the console take with 10,000 topics and 3,000 groups, without a browser's own part.

``python bench/console.py`` starts a broker process with the console in it and these tables, some messages and dead
letters, and asks for each page several times: the middle and the longest, in milliseconds, which go into
``bench/results/console.json``. Between two looks what the console keeps is forgotten, so each asks the broker anew.
"""

from __future__ import annotations

import datetime
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import anyio
import click
import orjson

sys.path.insert(0, str(Path(__file__).parents[1]))

from send import send_request

from tests.campaign.results import commit, machine, path
from verniermq.contrib.console.pages import VIEWS
from verniermq.kernel import DEAD_LETTER_PREFIX, connect
from verniermq.testing import broker_process
from verniermq.testing.ports import held_port

RESULTS: Final = Path(__file__).parent / "results" / "console.json"
TOPIC: Final = "topic-00007"
GROUP: Final = "group-0007"
NAMES: Final = {"cluster": "broker-a", "plugins": "broker-a", "topics": TOPIC}
MORE: Final = (
    "/topics?page=150", "/topics?q=99", "/topics?sort=messages", "/topics?all=1", "/groups?sort=name",
    "/groups?page=30", "/search?q=topic", f"/topics/{TOPIC}/messages?start=oldest",
    f"/messages?topic={TOPIC}&key=none", "/topics.json", "/groups.json",
)  # fmt: skip
"""Addresses of lists that are asked for otherwise."""
MESSAGES: Final = 100
KEPT_SECONDS: Final = 2.1
"""After so long nothing that was asked before is used again."""


def prepare(store: Path, topics: int, groups: int) -> None:
    """The tables, as a broker keeps them."""
    config = store / "config"
    config.mkdir(parents=True)
    names = [*(f"topic-{number:05}" for number in range(topics)), f"{DEAD_LETTER_PREFIX}{GROUP}"]
    table = {name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for name in names}
    (config / "topics.json").write_bytes(orjson.dumps({"topicConfigTable": table}))
    known = {name: {"groupName": name} for name in (f"group-{number:04}" for number in range(groups))}
    (config / "subscriptionGroup.json").write_bytes(orjson.dumps({"subscriptionGroupTable": known}))
    places = {f"topic-{number + more:05}@group-{number:04}": {"0": 0} for number in range(groups) for more in range(3)}
    (config / "consumerOffset.json").write_bytes(orjson.dumps({"offsetTable": places}))


async def fill(address: str) -> None:
    connection = await connect(address)
    for topic in (TOPIC, f"{DEAD_LETTER_PREFIX}{GROUP}"):
        for number in range(MESSAGES):
            await connection.request(send_request(topic, number % 4, 300))
    connection.close()


def pages() -> list[str]:
    """An address of every view, and of some lists in another order."""
    paths = []
    for view in VIEWS:
        name = NAMES.get(view.path.split("/")[1], GROUP)
        paths.append(view.path.replace("{name}", name).replace("{page:path}", "runtime"))
    return [*paths, *MORE]


def look(address: str) -> tuple[float, int]:
    """Milliseconds that a page takes, and its bytes."""
    begun = time.perf_counter()
    try:
        with urlopen(f"http://{address}", timeout=60) as answer:
            size = len(answer.read())
    except HTTPError as error:
        raise click.ClickException(f"{address}: {error.code} {error.reason}") from None
    return (time.perf_counter() - begun) * 1000, size


@click.command(help=__doc__)
@click.option("--topics", default=10_000, show_default=True)
@click.option("--groups", default=3_000, show_default=True)
@click.option("--times", default=5, show_default=True, help="How often each page is asked for.")
@click.option("--write/--no-write", default=True, show_default=True, help="Write bench/results/console.json.")
def main(topics: int, groups: int, times: int, write: bool) -> None:
    port = held_port(main)
    options = ['--set=plugins.enable=["default", "console"]', f"--set=plugins.console.listen=127.0.0.1:{port}"]
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit(),
        "machine": machine(), "path": path(), "topics": topics, "groups": groups, "times": times, "pages": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder) / "store", topics, groups)
        with broker_process(Path(folder) / "store", *options) as broker:
            anyio.run(fill, broker.broker)
            for page in pages():
                taken, size = [], 0
                for _ in range(times):
                    time.sleep(KEPT_SECONDS)
                    milliseconds, size = look(f"127.0.0.1:{port}{page}")
                    taken.append(milliseconds)
                middle, longest = statistics.median(taken), max(taken)
                click.echo(f"{page:44} {middle:7.0f} {longest:7.0f} ms {size / 1024:8.0f} KiB")
                record["pages"][page] = {
                    "median_ms": round(middle), "longest_ms": round(longest), "kibibytes": round(size / 1024),
                }  # fmt: skip
    slowest = max(record["pages"], key=lambda page: record["pages"][page]["longest_ms"])
    record["slowest"] = {"page": slowest, **record["pages"][slowest]}
    click.echo(f"slowest: {slowest}, {record['slowest']['longest_ms']} ms; {len(record['pages'])} pages")
    if write:
        RESULTS.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
