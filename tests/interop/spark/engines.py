"""``make engines``: what others read in the tables of an export.

Exports with Spark and without fill Iceberg and Delta tables: typed, with partitions, in several batches, put together,
and by key. Then Spark 4.2 reads the Delta tables with Delta's own jar, and Spark 4.1 the Iceberg tables with Iceberg's,
through the export's own catalog; each is in an environment of its own, for no Spark has both jars. pyiceberg and
delta-rs read them here, for DuckDB through Arrow. All must find the same. The result is a line of
``bench/results/engines.jsonl``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from tests.arrow.producing import Producing
from tests.campaign.results import commit
from tests.interop.spark.environments import ROOT
from verniermq.contrib.arrow.tables.iceberg import open_catalog
from verniermq.contrib.spark.java import find_java
from verniermq.testing import BrokerProcess, broker_process

RECORD = ROOT / "bench" / "results" / "engines.jsonl"
SPARK = {"delta": "4.2.0", "iceberg": "4.1.4"}
JARS = {
    "delta": [f"io.delta:{name}:4.4.0" for name in (
        "delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults",
        "delta-kernel-unitycatalog",
    )],
    "iceberg": ["org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0"],
}  # fmt: skip
MAVEN = ["mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"]
ROWS = 2000
QUESTIONS = {
    "rows": "select count(*), count(distinct struct(queueId, queueOffset)), sum(value.id), max(keys) from orders",
    "regions": "select value_region, count(*), sum(value.amount) from orders group by all order by all",
    "of one": "select count(*), min(value.id) from orders where value_region = 'north' and tags = 'sale'",
    "properties": "select count(*) from orders where element_at(properties, 'CHANNEL') = 'web'",
    "errors": "select count(*), min(corrupt) from orders__errors",
    "accounts": "select key, cast(body as string) from accounts order by key",
}
"""Asked in Spark's SQL; DuckDB has other names for three of its functions."""
DUCKDB = {
    "count(distinct struct(queueId, queueOffset))": "count(distinct (queueId, queueOffset))",
    "element_at(properties, 'CHANNEL')": "properties['CHANNEL']",
    "cast(body as string)": "decode(body)",
}


def environment(form: str) -> Path:
    """A Python with the Spark that the jars of a format are for."""
    folder = ROOT / "build" / f"spark-{SPARK[form]}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, f"pyspark=={SPARK[form]}", "pyarrow", "numpy"], check=True, timeout=600)
        (folder / "ready").touch()
    return python


def jars(form: str) -> list[str]:
    """The files of a format's jars, from Maven's registry."""
    folder = ROOT / "build" / "jars"
    found = []
    for name in JARS[form]:
        _, artifact, number = name.split(":")
        path = folder / f"{artifact}-{number}.jar"
        if not path.exists():
            _run([*MAVEN, f"-Dartifact={name}", f"-DoutputDirectory={folder}"])
        found.append(str(path))
    return found


def fill(broker: str) -> None:
    with Producing(broker) as producing:
        producing.create("orders", 2)
        producing.create("accounts", 1)
        for number in range(ROWS):
            region = ("north", "south", "")[number % 3]
            body = b'{"id": %d, "amount": "%d.50", "region": "%s"}' % (number, number, region.encode())
            tag = "sale" if number % 2 else "refund"
            producing.send("orders", body, number % 2, TAGS=tag, KEYS=f"order-{number}", CHANNEL="web")
        producing.send("orders", b"no order")
        for number in range(20):
            producing.send("accounts", b"" if number == 17 else b"balance %d" % number, KEYS=f"account-{number % 5}")


EXPECTED = {"delta": ROWS + 1, "iceberg": ROWS + 2}
"""Each export sends an order of its own before its last batch."""


def export(out: Path, broker: BrokerProcess, form: str, schema: Path) -> None:
    """Some batches without Spark, the last one with it; then small files are put together."""
    base = [sys.executable, "-m", "verniermq.cli"]
    where = ["--namesrv", broker.namesrv, "--format", form]
    typed = [
        "--topic",
        "orders",
        "--typed",
        f"orders={schema}",
        "--partition-by",
        "value:region",
        "--partition-by",
        "dt",
    ]
    both = [*where, *typed, "--batch-rows", "700"]
    _run([*base, "export", str(out / "tables"), *both])
    with Producing(broker.broker) as producing:
        producing.send("orders", b'{"id": 100000, "amount": "0.25", "region": "north"}', TAGS="sale", KEYS="last")
    _run([*base, "spark", "export", str(out / "tables"), *both, "--master", "local[2]"])
    _run([*base, "compact", str(out / "tables")])
    key = ["--topic", "accounts", "--mode", "upsert", "--key", "keys"]
    _run([*base, "export", str(out / "keyed"), *where, *key, "--batch-rows", "8"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-4000:]}")


def plain(value: Any) -> Any:
    """What JSON keeps of a value, the same for every engine."""
    return value if value is None or isinstance(value, int | str) else str(value)


def answers(connection: duckdb.DuckDBPyConnection) -> dict[str, list[list[Any]]]:
    found = {}
    for name, question in QUESTIONS.items():
        for ours, theirs in DUCKDB.items():
            question = question.replace(ours, theirs)
        found[name] = [[plain(value) for value in row] for row in connection.sql(question).fetchall()]
    return found


def by_duckdb(out: Path, form: str) -> dict[str, list[list[Any]]]:
    """Through Arrow: pyiceberg's reader, or delta-rs's."""
    connection = duckdb.connect()
    for folder, table in (("tables", "orders"), ("tables", "orders__errors"), ("keyed", "accounts")):
        rows: pa.Table
        if form == "iceberg":
            rows = open_catalog(out / folder).load_table(("mq", table)).scan().to_arrow()
        else:
            rows = DeltaTable(out / folder / "messages" / f"topic={table}").to_pyarrow_table()
        connection.register(table, rows)
    return answers(connection)


def by_spark(out: Path, form: str) -> dict[str, Any]:
    job = [
        environment(form),
        Path(__file__).with_name("engine_job.py"),
        form,
        ",".join(jars(form)),
        out,
        json.dumps(QUESTIONS),
    ]
    done = subprocess.run(
        [str(word) for word in job],
        capture_output=True, text=True, check=False, timeout=400, cwd=out,
        env={**os.environ, "JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(job[0])},
    )  # fmt: skip
    if "RESULT " not in done.stdout:
        raise click.ClickException(f"Spark {SPARK[form]} failed with {form}:\n{done.stderr[-4000:]}")
    told: dict[str, Any] = json.loads(done.stdout.partition("RESULT ")[2].splitlines()[0])
    return told


@click.command(help=__doc__)
def main() -> None:
    line: dict[str, Any] = {"at": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}", "commit": commit()}
    differences = []
    with tempfile.TemporaryDirectory(prefix="verniermq-engines-") as name:
        folder = Path(name)
        schema = folder / "orders.ddl"
        schema.write_text("id long, amount decimal(9,2), region string")
        with broker_process(folder / "store", '--set=plugins.enable=["default", "spark"]') as broker:
            fill(broker.broker)
            for form in SPARK:
                export(folder / form, broker, form, schema)
        for form, libraries in {"delta": ("deltalake", "duckdb"), "iceberg": ("pyiceberg", "duckdb")}.items():
            here, there = by_duckdb(folder / form, form), by_spark(folder / form, form)
            rows = here["rows"][0][0]
            line[form] = {
                "rows": rows, "questions": len(QUESTIONS), "spark": SPARK[form], "jars": JARS[form][0],
                **{library: version(library) for library in libraries},
            }  # fmt: skip
            differences += [
                f"{form}, {question!r}: DuckDB finds {here[question]}, Spark {there[question]}"
                for question in QUESTIONS
                if here[question] != there[question]
            ]
            if here["rows"][0][:2] != [EXPECTED[form]] * 2:
                differences.append(f"{form} has {here['rows']} rows, not {EXPECTED[form]}")
    line["differences"] = differences
    click.echo(json.dumps(line))
    with RECORD.open("a") as record:
        record.write(json.dumps(line) + "\n")
    if differences:
        raise click.ClickException("\n".join(differences))


if __name__ == "__main__":
    main()
