"""etcd as the coordinator, through its JSON gateway: plain HTTP/1.1, so there is nothing to install.

::

    /verniermq/<cluster>/<broker>/state             term, master, in-sync set; changed by comparing its revision
    /verniermq/<cluster>/<broker>/live/<replica>    lease of ttl seconds
    /verniermq/<cluster>/<broker>/members/<replica> the same, for ever
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

import anyio
import orjson

from verniermq.plugins.ha.coordinator import CoordinatorTrouble, Live, Snapshot, pack_state, unpack_state
from verniermq.plugins.ha.election import State

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 2.0
LONGEST_ANSWER: Final = 8 << 20
LONGEST_LINE: Final = 64 << 10
WATCH_SECONDS: Final = 30.0
"""A watch that says nothing for so long is made anew: its server may be gone without a word."""
UNAUTHENTICATED: Final = (401, 16)


NO_ANSWER: Final = (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError)
"""What a broken connection, a slow server, or one that is no etcd, look like."""


class EtcdRefused(CoordinatorTrouble):
    """etcd answered, and not with what was wanted."""

    def __init__(self, endpoint: str, path: str, code: int, why: str) -> None:
        super().__init__(f"etcd at {endpoint} refuses {path}: {why} ({code})")
        self.code = code


class Etcd:
    """The keys of one broker name."""

    elects_alone = False

    def __init__(
        self,
        endpoints: Sequence[str],
        cluster: str,
        broker: str,
        *,
        ttl: int = 3,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.ttl = ttl
        self._endpoints = list(endpoints)
        self._prefix = f"/verniermq/{quote(cluster, safe='')}/{quote(broker, safe='')}/"
        self._user, self._password, self._tls = user, password, tls
        self._token = ""
        self._lease = ""
        self._revision = 0
        """Of the whole etcd, at the last read."""

    # --- what a coordinator does -----------------------------------------------------------

    async def read(self) -> Snapshot:
        answer = await self._call("kv/range", {"key": _text(self._prefix), "range_end": _text(_after(self._prefix))})
        self._revision = int(answer.get("header", {}).get("revision", 0))
        state, revision = None, 0
        live: dict[int, Live] = {}
        members: dict[int, Live] = {}
        for entry in answer.get("kvs", ()):
            key = base64.b64decode(entry["key"]).decode().removeprefix(self._prefix)
            value = base64.b64decode(entry.get("value", ""))
            kind, _, number = key.partition("/")
            try:
                if key == "state":
                    state, revision = unpack_state(value), int(entry["mod_revision"])
                elif kind == "live":
                    live[int(number)] = Live.of(value)
                elif kind == "members":
                    members[int(number)] = Live.of(value)
            except (ValueError, KeyError, TypeError) as error:
                raise CoordinatorTrouble(f"etcd has {value[:100]!r} at {self._prefix}{key}: {error!r}") from error
        return Snapshot(state, revision, live, members)

    async def change(self, state: State, revision: int) -> int:
        key = _text(f"{self._prefix}state")
        target = {"target": "MOD", "mod_revision": str(revision)} if revision else {
            "target": "CREATE", "create_revision": "0",
        }  # fmt: skip
        request = {
            "compare": [{"key": key, "result": "EQUAL", **target}],
            "success": [{"request_put": {"key": key, "value": _bytes(pack_state(state))}}],
        }
        answer = await self._call("kv/txn", request)
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    async def announce(self, replica: int, live: Live) -> None:
        if not self._lease:
            answer = await self._call("lease/grant", {"TTL": str(self.ttl)})
            self._lease = answer["ID"]
            await self._put(f"members/{replica}", live.packed())
        try:
            await self._put(f"live/{replica}", live.packed(), self._lease)
        except EtcdRefused:
            self._lease = ""  # it ran out, and another is asked for next time
            raise

    async def _put(self, key: str, value: bytes, lease: str = "0") -> None:
        await self._call("kv/put", {"key": _text(self._prefix + key), "value": _bytes(value), "lease": lease})

    async def keep_alive(self) -> bool:
        if not self._lease:
            return False
        answer = await self._call("lease/keepalive", {"ID": self._lease})
        alive = int(answer.get("result", {}).get("TTL", 0)) > 0
        if not alive:
            self._lease = ""
        return alive

    async def leave(self) -> None:
        if self._lease:
            lease, self._lease = self._lease, ""
            await self._call("lease/revoke", {"ID": lease})

    async def changed(self) -> None:
        request = {
            "create_request": {
                "key": _text(self._prefix), "range_end": _text(_after(self._prefix)),
                "start_revision": str(self._revision + 1),
            }
        }  # fmt: skip
        async with self._answering("watch", request) as lines:
            with anyio.move_on_after(WATCH_SECONDS):
                async for line in lines:
                    result = orjson.loads(line).get("result")
                    if not result or result.get("events") or result.get("canceled"):
                        return

    # --- HTTP ------------------------------------------------------------------------------

    async def _call(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """The one answer of etcd. Whatever has an effect is asked for at one server only, and then at the next."""
        if self._user and not self._token:
            await self._log_in()
        try:
            return await self._ask(path, request)
        except EtcdRefused as error:
            if self._user and error.code in UNAUTHENTICATED:
                await self._log_in()  # the token ran out
                return await self._ask(path, request)
            raise

    async def _log_in(self) -> None:
        self._token = ""
        answer = await self._ask("auth/authenticate", {"name": self._user, "password": self._password})
        self._token = str(answer.get("token", ""))

    async def _ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        why = ""
        for endpoint in list(self._endpoints):
            try:
                with anyio.fail_after(CALL_SECONDS):
                    async with self._connected(endpoint, path, request) as (status, lines):
                        body = b"".join([line async for line in lines])
                if status == 200:
                    answer = orjson.loads(body) if body else {}
            except NO_ANSWER as error:
                why = f"{endpoint}: {error or type(error).__name__}"
                self._endpoints.append(self._endpoints.pop(self._endpoints.index(endpoint)))
                if path == "kv/txn":
                    break  # it may have happened: whoever asked must ask for the same again
                continue
            if status != 200:
                raise _refused(endpoint, path, status, body)
            if isinstance(answer, dict):
                return answer
            why = f"{endpoint}: it answers {path} with {body[:100]!r}"
        raise CoordinatorTrouble(f"etcd does not answer: {why}")

    @contextlib.asynccontextmanager
    async def _answering(self, path: str, request: dict[str, Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer that goes on, line by line."""
        if self._user and not self._token:
            await self._log_in()
        endpoint = self._endpoints[0]
        try:
            async with self._connected(endpoint, path, request) as (status, lines):
                if status != 200:
                    self._token = ""
                    raise CoordinatorTrouble(f"etcd at {endpoint} answers {path} with {status}")
                yield lines
        except NO_ANSWER as error:
            self._endpoints.append(self._endpoints.pop(self._endpoints.index(endpoint)))
            raise CoordinatorTrouble(f"etcd does not answer: {endpoint}: {error or type(error).__name__}") from error

    @contextlib.asynccontextmanager
    async def _connected(
        self, endpoint: str, path: str, request: dict[str, Any]
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port or 2379
        tls = self._tls if parts.scheme == "https" else None
        with anyio.fail_after(CALL_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=LONGEST_LINE)
        try:
            body = orjson.dumps(request)
            token = f"Authorization: {self._token}\r\n" if self._token else ""
            head = (
                f"POST /v3/{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{token}Content-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            with anyio.fail_after(CALL_SECONDS):
                await writer.drain()
                status, fields = await _head(reader)
            yield status, _body(reader, fields)
        finally:
            writer.transport.abort()


def _refused(endpoint: str, path: str, status: int, body: bytes) -> EtcdRefused:
    """etcd says why in JSON, and what stands before it in words."""
    try:
        answer = orjson.loads(body)
        return EtcdRefused(endpoint, path, int(answer.get("code", status)), answer.get("error") or answer["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return EtcdRefused(endpoint, path, status, body[:300].decode("utf-8", "replace").strip() or "no reason given")


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await reader.readuntil(b"\n")).split()
    if len(first) < 2 or not first[0].startswith(b"HTTP/1."):
        raise ValueError("the peer speaks no HTTP/1.1")
    fields = {}
    while line := (await reader.readuntil(b"\n")).strip():
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip()
    return int(first[1]), fields


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> AsyncIterator[bytes]:
    """The body, in pieces: of an answer that goes on, each is a line."""
    if fields.get("transfer-encoding", "").lower() != "chunked":
        data = await reader.read(LONGEST_ANSWER) if "content-length" not in fields else await reader.readexactly(
            min(int(fields["content-length"]), LONGEST_ANSWER)
        )  # fmt: skip
        yield data
        return
    while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
        if size > LONGEST_ANSWER:
            raise ValueError(f"an answer of {size} bytes")
        yield await reader.readexactly(size)
        await reader.readuntil(b"\n")


def _bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(text: str) -> str:
    return _bytes(text.encode())


def _after(prefix: str) -> str:
    """The first key that does not begin with the prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
