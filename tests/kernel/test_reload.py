"""Certificates and secrets change on the disk, and a broker that runs goes by them; a bad one changes nothing."""

from __future__ import annotations

import logging
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.plugins.acl.test_acl import send, signed
from tests.plugins.peer import peer
from verniermq.kernel import Broker, ConfigError, ResponseCode, connect
from verniermq.kernel.config import Configuration, load
from verniermq.kernel.config.filestamps import FileStamps, watch_files
from verniermq.plugins.namesrv import Config
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

FILES = Path(__file__).parents[1] / "client" / "tls"


def put(source: Path, target: Path) -> None:
    """As whoever renews a certificate does it: the new file is whole before it has the name."""
    shutil.copyfile(source, target.with_suffix(".new"))
    os.replace(target.with_suffix(".new"), target)


def write(file: Path, text: str) -> None:
    file.with_suffix(".new").write_text(text)
    os.replace(file.with_suffix(".new"), file)


def trusting(which: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=FILES / f"{which}certificate.pem")


async def shown(address: str, which: str) -> bool:
    """Whether a server shows a certificate."""
    host, _, port = address.rpartition(":")
    try:
        stream = await anyio.connect_tcp(host, int(port), tls=True, ssl_context=trusting(which))
    except ssl.SSLError:
        return False
    await stream.aclose()
    return True


async def until_logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with anyio.fail_after(60):
        while text not in caplog.text:  # noqa: ASYNC110 - files are looked at now and then
            await anyio.sleep(0.05)


@asynccontextmanager
async def tls_broker(folder: Path) -> AsyncIterator[Broker]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    put(FILES / "certificate.pem", certificate)
    put(FILES / "key.pem", key)
    async with running_broker(
        folder / "store", tls__mode="permissive", tls__certificate=str(certificate), tls__key=str(key)
    ) as broker:
        yield broker


async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with tls_broker(tmp_path) as broker:
        before = await connect(broker.address, tls=trusting(""))
        (name_server,) = broker.name_servers
        put(FILES / "second-key.pem", tmp_path / "key.pem")
        await until_logged(caplog, "the changed certificate is not used, what there was stays")  # without its key
        still_the_first = await shown(broker.address, "")
        put(FILES / "second-certificate.pem", tmp_path / "certificate.pem")
        await until_logged(caplog, "certificate changed")

        assert still_the_first
        assert await shown(broker.address, "second-")
        assert await shown(name_server, "second-")
        assert not await shown(broker.address, "")
        assert not before.closed
        before.close()
        await before.wait_closed()


async def test_a_certificate_that_cannot_be_read_is_told_once_and_the_old_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_broker(tmp_path) as broker:
        write(tmp_path / "certificate.pem", "no certificate")
        await until_logged(caplog, "is not used")
        await anyio.sleep(2.5)  # it is looked at again meanwhile

        assert await shown(broker.address, "")
    lines = [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]
    assert len(lines) == 1
    assert str(tmp_path / "certificate.pem") in lines[0]


async def test_accounts_come_from_a_file_that_a_variable_names_and_change_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    accounts = tmp_path / "accounts.toml"
    environ = {"VERNIERMQ_PLUGINS_ACL_ACCOUNTS_FILE": str(accounts)}
    flags = {
        "broker.port": 0, "plugins.namesrv.port": 0, "broker.vip_port": False, "store.path": str(tmp_path / "store"),
        "plugins.enable": ["default", "acl"],
    }  # fmt: skip

    write(accounts, '[shop]\nsecret = "the-first-secret"\ndefault_topic = "PUB"\n')

    def read() -> Configuration:
        return load(None, flags, environ)

    async with Broker(read(), reread=read) as broker, peer(broker.address) as client:
        first = await client.connection.request(signed(send("t"), "shop", "the-first-secret"))
        write(accounts, "[shop]\nsecret = ")
        await until_logged(caplog, "the changed settings are not used")
        still = await client.connection.request(signed(send("t"), "shop", "the-first-secret"))
        write(accounts, '[shop]\nsecret = "the-second-one"\ndefault_topic = "PUB"\n')
        await until_logged(caplog, "settings changed plugin=acl")
        old = await client.connection.request(signed(send("t"), "shop", "the-first-secret"))
        new = await client.connection.request(signed(send("t"), "shop", "the-second-one"))

    assert [answer.code for answer in (first, still, old, new)] == [
        ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS,
    ]  # fmt: skip
    assert "the-second" not in caplog.text


async def test_where_a_name_server_listens_changes_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broker.toml"
    flags = {"broker.port": 0, "broker.vip_port": False, "store.path": str(tmp_path / "store")}
    write(file, "[plugins.namesrv]\nport = 0\n")

    def read() -> Configuration:
        return load(file, flags, {})

    async with Broker(read(), reread=read) as broker:
        before = list(broker.name_servers)
        write(file, '[plugins.namesrv]\nport = 1\nbrokers = ["10.0.0.0/8"]\n')
        await until_logged(caplog, "host and port changed; they take effect at the next start")
        assert broker.name_servers == before
        async with peer(before[0]):
            pass


def test_a_file_gives_the_value_of_any_setting(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of twenty characters\n")
    name = tmp_path / "name"
    name.write_text("broker-of-a-file\n")

    found = load(
        None, {}, {"VERNIERMQ_PLUGINS_NAMESRV_SECRET_FILE": str(secret), "VERNIERMQ_BROKER_NAME_FILE": str(name)}
    )

    assert found.plugin("namesrv", Config).secret == "a secret of twenty characters"
    assert found.broker.name == "broker-of-a-file"
    assert list(found.origin.files) == [str(name), str(secret)]


def test_a_variable_twice_and_a_file_that_is_not_there_are_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="VERNIERMQ_BROKER_NAME and VERNIERMQ_BROKER_NAME_FILE are both set"):
        load(None, {}, {"VERNIERMQ_BROKER_NAME": "a", "VERNIERMQ_BROKER_NAME_FILE": "b"})
    with pytest.raises(ConfigError, match=re.escape(f"names {tmp_path / 'none'}, which cannot be read: No such file")):
        load(None, {}, {"VERNIERMQ_BROKER_NAME_FILE": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="VERNIERMQ_BROKER_NAMES_FILE is not a setting"):
        load(None, {}, {"VERNIERMQ_BROKER_NAMES_FILE": str(tmp_path)})


def test_a_file_that_is_replaced_has_changed_and_one_that_is_missing_has_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    stamps = FileStamps([str(file)])

    assert not stamps.changed()
    file.unlink()
    assert not stamps.changed()
    file.write_text("two")
    assert stamps.changed()
    assert not stamps.changed()


async def test_a_change_between_the_first_reading_and_the_first_look_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "broker.toml"
    flags = {
        "broker.port": 0, "plugins.namesrv.port": 0, "broker.vip_port": False, "store.path": str(tmp_path / "store"),
        "plugins.enable": ["default", "acl"],
    }  # fmt: skip

    def read() -> Configuration:
        return load(file, flags, {})

    write(file, '[plugins.acl.accounts.shop]\nsecret = "the-first-secret"\ndefault_topic = "PUB"\n')
    configuration = read()
    write(file, '[plugins.acl.accounts.shop]\nsecret = "the-second-one"\ndefault_topic = "PUB"\n')
    async with Broker(configuration, reread=read) as broker, peer(broker.address) as client:
        await until_logged(caplog, "settings changed plugin=acl")
        answer = await client.connection.request(signed(send("t"), "shop", "the-second-one"))

    assert answer.code == ResponseCode.SUCCESS


async def test_no_error_ends_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("verniermq.kernel.config.filestamps.LOOK_SECONDS", 0.01)
    file, read = tmp_path / "secret", list[str]()
    write(file, "one")

    def reload() -> None:
        read.append(file.read_text())
        if read == ["two"]:
            raise RecursionError("nobody thought of this")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch_files, "secret is", FileStamps([str(file)]), reload)
        for text in ("two", "three"):
            write(file, text)
            with anyio.fail_after(30):
                while text not in read:  # noqa: ASYNC110 - files are looked at now and then
                    await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()

    assert read == ["two", "three"]
    assert "the changed secret is not used, what there was stays" in caplog.text
    assert "nobody thought of this" in caplog.text


def test_a_name_server_takes_a_new_certificate_and_a_new_secret(tmp_path: Path) -> None:
    certificate, key, secret = tmp_path / "certificate.pem", tmp_path / "key.pem", tmp_path / "secret"
    put(FILES / "certificate.pem", certificate)
    put(FILES / "key.pem", key)
    secret.write_text("a secret of twenty characters")
    command = [
        sys.executable, "-m", "verniermq.cli", "namesrv", "--port", "0", "--certificate", str(certificate),
        "--key", str(key), "--secret-file", str(secret),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout)
            address = next(line for line in lines if "listening on" in line).split()[-1]
            write(secret, "short")
            told = next(line for line in lines if "is not used" in line)
            write(secret, "another secret of some characters")
            put(FILES / "second-certificate.pem", certificate)
            put(FILES / "second-key.pem", key)
            next(line for line in lines if "certificate changed" in line)
            is_shown = anyio.run(shown, address, "second-")
        finally:
            process.terminate()

    assert "the secret has 5 characters" in told
    assert is_shown
