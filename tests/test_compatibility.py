"""``docs/compatibility.md`` and ``docs/mqadmin.md`` say of every request and command of 5.5.0 what is true."""

from __future__ import annotations

import re

import pytest

from tests.compatibility import CODES, NOT_SERVED, PAGE, ROOT, is_tried, page, served
from tests.plugins.peer import peer
from verniermq.kernel import RequestCode, ResponseCode
from verniermq.kernel.remoting import Command
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio


async def test_the_page_is_what_brokers_name_servers_and_clients_register() -> None:
    assert PAGE.read_text() == page(await served()), "python -m tests.compatibility writes it anew"


async def test_what_is_served_is_tried() -> None:
    names = {code: name for name, code in CODES.items()}
    assert [names[code] for code in await served() if code in names and not is_tried(names[code])] == []


async def test_our_numbers_are_rocketmqs() -> None:
    ours = {code.name: code.value for code in RequestCode if code < 32_000 or code > 33_000}
    assert {name: code for name, code in ours.items() if CODES.get(name, code) != code} == {}


async def test_what_is_not_served_is_refused_and_costs_nobody_the_connection() -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        for name in NOT_SERVED:
            answer = await client.connection.request(Command.request(CODES[name]))
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, name
        await client.sent("orders")


def test_every_command_of_mqadmin_is_in_one_of_the_two_tables() -> None:
    text = (ROOT / "docs" / "mqadmin.md").read_text()
    working, refused = (re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in text.split("| refused |"))
    commands = (ROOT / "tests" / "mqadmin-5.5.0.txt").read_text().split()

    assert sorted(working + refused) == sorted(commands)
    assert f"{len(working)} work and {len(refused)} are refused" in text


def test_what_works_by_mqadmin_is_tried_with_it() -> None:
    text = (ROOT / "docs" / "mqadmin.md").read_text().split("| refused |")[0]
    tests = "".join(file.read_text() for file in (ROOT / "tests" / "interop").glob("test_*.py"))

    assert [name for name in re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) if f'"{name}"' not in tests] == []
