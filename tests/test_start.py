"""What a start costs: modules that a broker with its default settings does not need are not imported."""

import subprocess
import sys
from pathlib import Path

COLD = {
    "csv", "decimal", "difflib", "email", "hashlib", "hmac", "http", "importlib.metadata", "importlib.resources", "pdb",
    "tempfile", "tomllib", "unittest", "zipfile",
    "cryptography", "google.protobuf", "grpc", "numpy", "pyarrow", "pyspark",
    "jinja2", "opentelemetry", "prometheus_client", "starlette", "uvicorn",
    "verniermq.client", "verniermq.contrib.console", "verniermq.contrib.metrics", "verniermq.plugins.acl",
    "verniermq.plugins.allocate.registry", "verniermq.plugins.flow.engine", "verniermq.plugins.flow.shaper",
    "verniermq.plugins.http", "verniermq.plugins.schedule.timers.service", "verniermq.plugins.schedule.timers.wheel",
    "verniermq.testing",
}  # fmt: skip
"""For mistakes, for secrets, for other commands, for those who ask: each is imported where it is used."""

PROGRAM = """
import sys
import anyio
from verniermq.cli import main
from verniermq.cli.broker import broker
from verniermq.kernel.broker import Broker
from verniermq.kernel.config import load

async def start(store, *disable):
    overrides = {"broker.port": 0, "plugins.namesrv.port": 0, "store.path": store}
    if disable:
        overrides["plugins.disable"] = disable
    async with Broker(load(None, overrides, environ={})):
        print(*sys.modules)

anyio.run(start, *sys.argv[1:])
"""


def loaded_by_start(store: Path, *disable: str) -> set[str]:
    """The modules of a broker that has just started without some of the default plugins."""
    started = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store), *disable], capture_output=True, text=True, timeout=120
    )
    assert started.returncode == 0, started.stderr
    return set(started.stdout.split())


def test_a_start_imports_nothing_that_is_not_needed(tmp_path: Path) -> None:
    loaded = loaded_by_start(tmp_path / "store")

    assert "verniermq.plugins.pop" in loaded
    assert not loaded & COLD


def test_a_start_without_some_plugins_imports_none_of_them(tmp_path: Path) -> None:
    loaded = loaded_by_start(tmp_path / "store", "schedule", "retry", "priority", "txn")

    assert "verniermq.plugins.pop" in loaded
    assert not loaded & (COLD | {f"verniermq.plugins.{name}" for name in ("schedule", "retry", "priority", "txn")})
