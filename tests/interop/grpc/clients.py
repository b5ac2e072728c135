"""Builds the programs around the official gRPC clients, each once, as ``toolchains.py`` does for the others."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

from tests.interop.toolchains import BUILD, SMALL_JVM, built_once, java_command, run_tool, tool

HERE = Path(__file__).parent

GRPC_CLIENTS = ("python", "node", "java", "go")


@functools.cache
def python_environment() -> Path:
    """An environment of its own: the official package registers the same names that our tables have."""

    def build(target: Path) -> None:
        run_tool(sys.executable, "-m", "venv", str(target / "venv"), cwd=target)
        install = ("-m", "pip", "install", "--quiet", "-r", str(HERE / "python" / "requirements.txt"))
        run_tool(str(target / "venv" / "bin" / "python"), *install, cwd=target)

    return built_once("grpc-python", HERE / "python", build) / "venv" / "bin" / "python"


@functools.cache
def grpc_driver(client: str) -> tuple[str, ...]:
    """What to put before a subcommand."""
    return {"python": _python, "node": _node, "java": grpc_java, "go": _go}[client]()


def _python() -> tuple[str, ...]:
    return (str(python_environment()), str(HERE / "python" / "driver.py"))


def _node() -> tuple[str, ...]:
    def build(target: Path) -> None:
        ignore = shutil.ignore_patterns("node_modules")
        shutil.copytree(HERE / "node", target, dirs_exist_ok=True, ignore=ignore)
        run_tool("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=target)

    return (tool("node"), str(built_once("grpc-node", HERE / "node", build) / "main.js"))


def grpc_java(jvm: tuple[str, ...] = (*SMALL_JVM, "-Xmx256m")) -> tuple[str, ...]:
    def build(target: Path) -> None:
        run_tool("mvn", "-B", "-q", "compile", f"-Ddriver.build={target}", cwd=HERE / "java")

    built = built_once("grpc-java", HERE / "java", build)
    classpath = f"{built}/classes{os.pathsep}{built}/lib/*"
    return java_command("-cp", classpath, "verniermq.Main", home=BUILD / "home" / "grpc-java", jvm=jvm)


def _go() -> tuple[str, ...]:
    def build(target: Path) -> None:
        run_tool("go", "build", "-o", str(target / "driver"), ".", cwd=HERE / "go")

    return (str(built_once("grpc-go", HERE / "go", build) / "driver"),)
