"""``verniermq plugin new``: a package to start a plugin from, complete enough to install, test and enable at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from verniermq.kernel.errors import VernierMQError
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.kernel.host.plugin import API_VERSION

NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")

PYPROJECT: Final = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "verniermq-{dashed}"
version = "0.1.0"
description = "A plugin for VernierMQ"
requires-python = ">=3.11"
dependencies = ["verniermq"]

[project.optional-dependencies]
dev = ["pytest"]

# This line is how VernierMQ finds the plugin; [plugins] enable in broker.toml is what activates it.
[project.entry-points.verniermq]
{name} = "verniermq_{name}:Plugin"

[tool.setuptools]
py-modules = ["verniermq_{name}"]
"""

MODULE: Final = '''\
"""Says what this plugin is for, in one sentence."""

from typing import ClassVar

import attrs

from verniermq.kernel import Context, Declaration, MessageIllegal, PendingMessage, hookimpl, setting


@attrs.frozen
class Config:
    """``[plugins.{name}]`` in broker.toml."""

    required_property: str = setting("owner", "Messages without this property are refused.")


@attrs.define(eq=False)  # pluggy compares plugins; two with equal settings are still two
class Plugin:
    declaration: ClassVar = Declaration(
        api={api}, config=Config, summary="Refuses messages that lack a property.", on_failure="closed"
    )
    config: Config
    broker: Context

    @hookimpl
    def before_append(self, message: PendingMessage) -> None:
        """docs/hooks.md of VernierMQ has every hook, when it is called, and what its answer means."""
        wanted = self.config.required_property
        if wanted not in message.properties:
            raise MessageIllegal(f"a message to {{message.topic!r}} needs the property {{wanted!r}}")
'''

TEST: Final = '''\
"""A real broker in the test's own process; pytest needs ``anyio`` for async tests, which VernierMQ brings along."""

import pytest
from verniermq.client import Message, Producer
from verniermq.kernel import UnexpectedAnswer
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_message_without_the_property_is_refused() -> None:
    async with (
        running_broker(plugins__enable=["default", "{name}"]) as broker,
        Producer("group", namesrv=broker.name_servers[0]) as producer,
    ):
        await producer.send(Message("orders", b"body", properties={{"owner": "me"}}))

        with pytest.raises(UnexpectedAnswer, match="needs the property 'owner'"):
            await producer.send(Message("orders", b"body"))
'''

README: Final = """\
# verniermq-{dashed}

A plugin for VernierMQ.

    pip install -e '.[dev]'
    pytest                                      # runs a real broker with the plugin in it
    verniermq plugins                           # lists it: installed, not yet active

Activate it in broker.toml:

    [plugins]
    enable = ["default", "{name}"]

    [plugins.{name}]
    required_property = "owner"
"""


@click.group()
def plugin() -> None:
    """Write plugins."""


@plugin.command()
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Where the folder goes.")
def new(name: str, into: Path) -> None:
    """Write a package NAME to start from: a plugin with a setting, a test, and what makes it installable."""
    if not NAME.match(name):
        raise VernierMQError(f"plugin name {name!r}: use small letters, digits and '_', beginning with a letter")
    if name in BROKER_PLUGINS.builtin:
        raise VernierMQError(f"plugin name {name!r} is a built-in plugin's; choose another")
    dashed = name.replace("_", "-")
    folder = into / f"verniermq-{dashed}"
    if folder.exists():
        raise VernierMQError(f"{folder} exists already; choose another name or place")
    files = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"verniermq_{name}.py": MODULE,
        f"test_{name}.py": TEST,
    }
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text.format(name=name, dashed=dashed, api=API_VERSION))
        click.echo(f"wrote {folder / file}")
    click.echo(f"next: cd {folder} && pip install -e '.[dev]' && pytest")
