"""``verniermq debug bundle``: what somebody who helps wants to know of a broker, in one file, without its secrets."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import attrs
import click

from verniermq.cli.client import connection, json_option, namesrv_option, run
from verniermq.cli.inventory import take_inventory
from verniermq.cli.options import config_options, configuration_from
from verniermq.cli.render import render_effective
from verniermq.client.admin import Admin
from verniermq.kernel.broker import Broker
from verniermq.kernel.config import Configuration

LOG_BYTES: Final = 1024 * 1024
"""Of the end of each log file."""
PAGE_BYTES: Final = 32 * 1024 * 1024
PAGES: Final = {"livez.json": "/livez", "readyz.json": "/readyz", "metrics.txt": "/metrics"}
MASK: Final = "********"

_SECRET: Final = re.compile(
    r"""(?ix) ((?:secret|password|passwd|token|signature|access_?key|credential|api_?key|authorization)[\w.-]*
        ["']?\s*[=:]\s*)
        ( "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | (?:bearer|basic)\s+\S+ | [^\s,;}&"']+ )"""
)
"""``name = value`` where the name says that the value is nobody's business."""
_URL: Final = re.compile(r"(\w+://)[^\s/@:]+:[^\s/@]+@")


def masked(text: str) -> str:
    """A text without what looks like a secret in it: passwords, keys, tokens, and credentials in addresses."""
    return _URL.sub(rf"\1{MASK}@", _SECRET.sub(rf"\1{MASK}", text))


@click.group()
def debug() -> None:
    """Gather what somebody who helps wants to know."""


@debug.command()
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: verniermq-debug-TIME.zip]",
)  # fmt: skip
@config_options
@namesrv_option
@click.option("--http", metavar="HOST:PORT", help="Where http serves its pages: /livez, /readyz.")
@click.option("--metrics", metavar="HOST:PORT", help="Where /metrics is served.")
@click.option(
    "--log", "logs", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A log file; its last megabyte is taken. May be repeated.",
)  # fmt: skip
@json_option
def bundle(
    output: Path | None, config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...], namesrv: str,
    http: str | None, metrics: str | None, logs: tuple[Path, ...], as_json: bool,
) -> None:  # fmt: skip
    """Write versions, settings, plugins, figures of the brokers, pages and ends of logs to one zip file.

    Bodies of messages are not in it. Secrets are masked: those of the configuration by what they are, those in logs and
    pages by how they look, so read the file before you give it away. What cannot be had is named in errors.json.
    """
    target = output or Path(f"verniermq-debug-{time.strftime('%Y%m%d-%H%M%S')}.zip")
    parts: dict[str, Callable[[], str]] = {"versions.json": _versions, "environment.json": _environment}

    def configuration() -> Configuration:
        return configuration_from(config_path, no_plugins, settings)

    parts["config.toml"] = lambda: _config(configuration())
    parts["plugins.json"] = lambda: _json(attrs.asdict(take_inventory(configuration())))
    parts["cluster.json"] = lambda: _cluster(namesrv)
    for name, path in PAGES.items():
        address = metrics if path == "/metrics" else http
        if address is not None:
            parts[name] = lambda address=address, path=path: _page(f"http://{address}{path}")  # type: ignore[misc]
    for number, log in enumerate(logs):
        parts[f"logs/{number}-{log.name}"] = lambda log=log: _end_of(log)  # type: ignore[misc]

    errors: dict[str, str] = {}
    try:
        with (
            open(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, make in parts.items():
                try:
                    archive.writestr(name, masked(make()))
                except Exception as error:  # the more is wrong, the more the rest is needed
                    errors[name] = f"{type(error).__name__}: {error}"
            archive.writestr("errors.json", masked(_json(errors)))
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror}") from None
    if as_json:
        missing = {name: masked(why) for name, why in errors.items()}
        click.echo(
            json.dumps(
                {"file": str(target), "parts": [name for name in parts if name not in errors], "missing": missing}
            )
        )
        return
    for name, why in errors.items():
        click.echo(f"{name} is not in it: {masked(why)}", err=True)
    click.echo(f"{target}: {len(parts) - len(errors)} files; read them before you give them away")


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, default=str, ensure_ascii=False) + "\n"


def _versions() -> str:
    packages = {one.metadata["Name"]: one.version for one in metadata.distributions() if one.metadata["Name"]}
    machine = {"system": platform.platform(), "processors": os.cpu_count(), "python": sys.version}
    return _json({"machine": machine, "packages": dict(sorted(packages.items()))})


def _environment() -> str:
    """Only the names: a setting that comes from there is in ``config.toml``."""
    return _json(sorted(name for name in os.environ if name.startswith(("VERNIERMQ_", "NAMESRV_ADDR", "PYTHON"))))


def _config(configuration: Configuration) -> str:
    host = Broker(configuration).host
    host.load(configuration)
    return render_effective(configuration, {plugin.name: plugin.config for plugin in host.active.values()})


def _cluster(namesrv: str) -> str:
    async def work() -> dict[str, Any]:
        async with Admin(**connection(namesrv)) as admin:
            statuses = [attrs.asdict(one) for one in await admin.broker_statuses()]
            topics, groups = await admin.topic_configs(), await admin.group_configs()
            return {"brokers": statuses, "topics": topics, "groups": groups}

    return _json(run(work))


def _page(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return str(answer.read(PAGE_BYTES).decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return error.read(PAGE_BYTES).decode(errors="replace")  # 503 of /readyz says why


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read(LOG_BYTES).decode(errors="replace")
