"""How long the pages of the console take with 10,000 topics and 3,000 groups, without a browser's own part.

``python bench/console.py`` starts a broker process with the console in it and these tables, and asks for each
page several times: the middle and the longest, in milliseconds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import click
import orjson

from verniermq.contrib.console.pages import VIEWS
from verniermq.testing import broker_process
from verniermq.testing.ports import held_port

NAMES = {"cluster": "broker-a", "plugins": "broker-a", "topics": "topic-00007"}


def prepare(store: Path, topics: int, groups: int) -> None:
    """The tables, as a broker keeps them."""
    config = store / "config"
    config.mkdir(parents=True)
    table = {
        name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        for name in (f"topic-{number:05}" for number in range(topics))
    }
    (config / "topics.json").write_bytes(orjson.dumps({"topicConfigTable": table}))
    known = {name: {"groupName": name} for name in (f"group-{number:04}" for number in range(groups))}
    (config / "subscriptionGroup.json").write_bytes(orjson.dumps({"subscriptionGroupTable": known}))
    places = {f"topic-{number + more:05}@group-{number:04}": {"0": 0} for number in range(groups) for more in range(3)}
    (config / "consumerOffset.json").write_bytes(orjson.dumps({"offsetTable": places}))


@click.command(help=__doc__)
@click.option("--topics", default=10_000, show_default=True)
@click.option("--groups", default=3_000, show_default=True)
@click.option("--times", default=5, show_default=True, help="How often each page is asked for.")
def main(topics: int, groups: int, times: int) -> None:
    port = held_port(main)
    options = ['--set=plugins.enable=["default", "console"]', f"--set=plugins.console.listen=127.0.0.1:{port}"]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder) / "store", topics, groups)
        with broker_process(Path(folder) / "store", *options):
            for view in VIEWS:
                name = NAMES.get(view.path.split("/")[1], "group-0007")
                path = view.path.replace("{name}", name).replace("{page:path}", "runtime")
                if path.startswith("/dlq/"):
                    continue  # nobody has dead letters
                taken = []
                for _ in range(times):
                    begun = time.perf_counter()
                    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                        answer.read()
                    taken.append((time.perf_counter() - begun) * 1000)
                    time.sleep(2.1)  # lists are kept for two seconds
                click.echo(f"{path:32} {statistics.median(taken):7.0f} {max(taken):7.0f} ms")


if __name__ == "__main__":
    main()
