"""Builds the drivers and fetches Apache's jars, each once, under ``build/interop/``.

Every client comes unmodified from its own package manager, at the version pinned in ``java/pom.xml`` (and
below, for the older one), ``go/go.mod``, ``node/package.json`` and ``rust/Cargo.toml``. A folder is built
again when anything in its sources changed. A missing toolchain fails the test: a skipped client would look
like a working one.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "interop"

JAVA_CLIENTS = {"java5": "5.5.0", "java4": "4.9.8"}
SERVER = "5.5.0"
OLD_SERVER = "4.9.7"
CLIENTS = (*JAVA_CLIENTS, "go", "node")

# Runs are short: the first compiler and the simplest collector start fastest and spare the cores.
SMALL_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@functools.cache
def driver_command(client: str) -> tuple[str, ...]:
    """Build the driver of ``client`` if needed and return what to put before its subcommand."""
    if client in JAVA_CLIENTS:
        return java_driver(client, (*SMALL_JVM, "-Xmx256m"))
    return {"go": _go_driver, "node": _node_driver}[client]()


@functools.cache
def server_classpath(version: str = SERVER) -> str:
    """Fetch Apache's name server, broker and ``mqadmin`` if needed and return their class path."""

    def build(target: Path) -> None:
        choice = (f"-Dserver.build={target}", f"-Drocketmq.version={version}")
        run_tool("mvn", "-B", "-q", "package", *choice, cwd=HERE / "server")

    name = "apache-server" if version == SERVER else f"apache-server-{version}"
    return f"{built_once(name, HERE / 'server', build, version)}/lib/*"


def java_command(*options: str, home: Path, jvm: Sequence[str] = SMALL_JVM) -> tuple[str, ...]:
    """A JVM, a small one by default. RocketMQ writes logs and offsets below the user's home: it gets one to itself."""
    home.mkdir(parents=True, exist_ok=True)
    return (tool("java"), *jvm, f"-Duser.home={home}", *options)


def java_driver(client: str, jvm: Sequence[str]) -> tuple[str, ...]:
    """The driver around one generation of the Java client, in a virtual machine with these options."""
    version = JAVA_CLIENTS[client]

    def build(target: Path) -> None:
        choice = (f"-Drocketmq.version={version}", f"-Ddriver.build={target}")
        run_tool("mvn", "-B", "-q", "compile", *choice, cwd=HERE / "java")

    built = built_once(client, HERE / "java", build, version)
    classpath = f"{built}/classes{os.pathsep}{built}/lib/*"
    return java_command("-cp", classpath, "verniermq.interop.Main", home=BUILD / "home" / client, jvm=jvm)


@functools.cache
def spring_command(program: str) -> tuple[str, ...]:
    """Build a Spring program if needed, ``spring`` or ``springstream``, and return what to put before its options."""

    def build(target: Path) -> None:
        run_tool("mvn", "-B", "-q", "compile", f"-Ddriver.build={target}", cwd=HERE / program)

    built = built_once(program, HERE / program, build)
    classpath = f"{built}/classes{os.pathsep}{built}/lib/*"
    options = ("-Xmx256m", "-cp", classpath, f"verniermq.interop.{program}.Main")
    return java_command(*options, home=BUILD / "home" / program)


@functools.cache
def rust_command() -> tuple[str, ...]:
    """Build the program around the Rust client if needed, in minutes, and return what to put before its options."""

    def build(target: Path) -> None:
        run_tool("cargo", "build", "--locked", "--quiet", "--target-dir", str(target), cwd=HERE / "rust")

    return (str(built_once("rust", HERE / "rust", build) / "debug" / "driver"),)


def _go_driver() -> tuple[str, ...]:
    def build(target: Path) -> None:
        run_tool("go", "build", "-o", str(target / "driver"), ".", cwd=HERE / "go")

    return (str(built_once("go", HERE / "go", build) / "driver"),)


def _node_driver() -> tuple[str, ...]:
    def build(target: Path) -> None:
        # Node looks for packages beside the program, so the program moves and the sources stay clean.
        ignore = shutil.ignore_patterns("node_modules")
        shutil.copytree(HERE / "node", target, dirs_exist_ok=True, ignore=ignore)
        run_tool("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=target)

    return (tool("node"), str(built_once("node", HERE / "node", build) / "main.js"))


def built_once(name: str, sources: Path, build: Callable[[Path], None], variant: str = "") -> Path:
    """Run ``build(target)`` unless the target was built from exactly these sources; safe across processes."""
    target = BUILD / name
    stamp = target / "built-from"
    fingerprint = _fingerprint(sources, variant)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == fingerprint):
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            build(target)
            stamp.write_text(fingerprint)
    return target


def _fingerprint(sources: Path, variant: str) -> str:
    digest = hashlib.sha256(variant.encode())
    for path in sorted(sources.rglob("*")):
        if path.is_file() and not {"node_modules", "__pycache__"} & set(path.parts):
            digest.update(str(path.relative_to(sources)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def run_tool(name: str, *arguments: str, cwd: Path) -> None:
    """Run one build tool; its output becomes the test's failure if it fails."""
    command: Sequence[str] = (tool(name), *arguments)
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        what = f"{name} {' '.join(arguments)} failed in {cwd.name}/"
        pytest.fail(f"{what}:\n{done.stdout[-4000:]}", pytrace=False)


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        needed = "the interop suite needs Java 17, Maven, Go and Node with npm"
        pytest.fail(f"{name} is not on the PATH; {needed}", pytrace=False)
    return found
