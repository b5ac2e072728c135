"""The example of a stranger's plugin, installed for real: both wheels in a fresh environment, a broker from there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import attrs
import orjson
import pytest

from tests.plugins.peer import peer
from verniermq.kernel import ResponseCode

pytestmark = pytest.mark.timeout(300)  # the first of them builds, and fetches what the wheels depend on

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "contrib" / "example_plugin"
OURS = (
    "kernel", "protocol", "plugins", "client", "cli", "testing", "contrib", "pyproject.toml", "setup.py", "README.md",
)  # fmt: skip
SMALL = """
[broker]
port = 0
vip_port = false
[plugins.namesrv]
port = 0
[store]
segment_size = "64MiB"
"""
GOOD = "A-2024-000123-88"


def run(*command: object, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**clean, **environment})
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy(source: Path, names: tuple[str, ...], target: Path) -> Path:
    """Sources only: what lies in a build folder of the tree must not get into a wheel."""
    target.mkdir()
    leftovers = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=leftovers)
        else:
            shutil.copy(source / name, target / name)
    return target


@attrs.frozen
class Environment:
    folder: Path
    wheels: list[Path]
    sources: Path
    """What ours was built from."""

    def command(self, name: str) -> Path:
        return self.folder / "bin" / name


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh virtual environment with both wheels and what they depend on, and nothing of this tree."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", "--target", folder / "tools", "setuptools>=77")
    sources = [
        copy(ROOT, OURS, folder / "ours"),
        copy(EXAMPLE, tuple(path.name for path in EXAMPLE.iterdir()), folder / "example"),
    ]
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "wheels")
    run(*pip, *build, *sources, PYTHONPATH=str(folder / "tools"))
    wheels = sorted((folder / "wheels").glob("*.whl"))
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    made = Environment(folder / "venv", wheels, folder / "ours")
    install = ("--python", made.command("python"), "install")
    run(*pip, *install, *[f"{wheel}[test]" if "order" in wheel.name else wheel for wheel in wheels])
    return made


@contextmanager
def broker(environment: Environment, folder: Path, settings: str) -> Iterator[str]:
    """A broker process of the environment, with this ``broker.toml``; its address."""
    folder.mkdir()
    (folder / "broker.toml").write_text(f"{SMALL}{settings}")
    ready = folder / "ready.json"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(environment.command("verniermq")), "broker", "--config", "broker.toml", "--ready-file", str(ready)],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        patience = monotonic() + 30
        while not ready.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert monotonic() < patience, (folder / "log").read_text()
            sleep(0.01)
        yield orjson.loads(ready.read_bytes())["broker"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (folder / "log").read_text()


def test_the_wheel_has_every_package_and_no_test_and_no_example(environment: Environment) -> None:
    wheel = next(path for path in environment.wheels if path.name.startswith("verniermq-"))
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if name.endswith(".py")}

    rooms = [environment.sources / name for name in OURS if (environment.sources / name).is_dir()]
    packages = [path.parent for room in rooms for path in room.rglob("__init__.py")]
    ours = [path for package in packages for path in package.glob("*.py") if "example_plugin" not in path.parts]
    assert {f"verniermq/{path.relative_to(environment.sources)}" for path in ours} <= files
    assert [name for name in files if "example_plugin" in name or "/test_" in name] == []


def test_everything_comes_from_the_wheels(environment: Environment) -> None:
    script = "import verniermq.kernel, verniermq_order_numbers as o; print(verniermq.kernel.__file__, o.__file__)"
    for path in run(environment.command("python"), "-c", script).split():
        assert Path(path).is_relative_to(environment.folder)


def test_the_example_s_own_tests_pass(environment: Environment) -> None:
    run(environment.command("python"), "-m", "pytest", "-q", "-c", EXAMPLE / "pyproject.toml", "-p", "no:cacheprovider",
        EXAMPLE / "tests", PYTHONDONTWRITEBYTECODE="1")  # fmt: skip


async def test_enabled_in_broker_toml_it_acts_on_messages(environment: Environment, tmp_path: Path) -> None:
    settings = '[plugins]\nenable = ["default", "order_numbers"]\n[plugins.order_numbers]\ntopics = ["orders"]\n'
    with broker(environment, tmp_path / "broker", settings) as address:
        async with peer(address) as client:
            refused = await client.send("orders", b"wrong", orderNumber="A-2024-000123-00")
            await client.sent("orders", b"right", orderNumber=GOOD)
            (message,) = await client.pull("orders")

    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "'A-2024-000123-00', expected an order number" in refused.remark
    assert (message.body, message.properties["order-number-checked"]) == (b"right", "true")


async def test_found_but_not_enabled_it_does_nothing(environment: Environment, tmp_path: Path) -> None:
    listed = orjson.loads(run(environment.command("verniermq"), "plugins", "--json"))
    (entry,) = [entry for entry in listed["entries"] if entry["name"] == "order_numbers"]
    with broker(environment, tmp_path / "broker", "") as address:
        async with peer(address) as client:
            await client.sent("orders", b"wrong", orderNumber="A-2024-000123-00")
            (message,) = await client.pull("orders")

    assert (entry["state"], entry["origin"]) == ("inactive", "verniermq-order-numbers 1.0.0")
    assert message.body == b"wrong"
    assert "order-number-checked" not in message.properties
