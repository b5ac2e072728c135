"""A server that speaks as much of etcd's JSON gateway as brokers need, with faults on request.

The same tests run on a real etcd in ``tests/interop``; this one is there in a moment, and can lose answers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import orjson


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


@attrs.define
class Entry:
    value: str
    revision: int
    lease: str


@attrs.define(eq=False)
class Gateway:
    """One etcd, in memory."""

    revision: int = 1
    entries: dict[str, Entry] = attrs.field(factory=dict)
    leases: dict[str, tuple[float, float]] = attrs.field(factory=dict)
    """Lease → its seconds, and when it runs out."""
    down: bool = False
    """Whether all connections are refused service."""
    lose_answer: Callable[[str], bool] = lambda path: False
    """Whether a request is served and its answer lost."""
    lose_request: Callable[[str], bool] = lambda path: False
    says_instead: str = ""
    """What every request is refused with, as text."""
    users: dict[str, str] = attrs.field(factory=dict)
    tokens: set[str] = attrs.field(factory=set)
    url: str = ""
    changed: anyio.Event = attrs.Factory(anyio.Event)
    _serving: dict[asyncio.Task[None], asyncio.StreamWriter] = attrs.field(factory=dict)

    def set_down(self, down: bool) -> None:
        self.down = down
        for writer in list(self._serving.values()):
            writer.transport.abort()

    def keys(self, prefix: str = "") -> dict[str, Any]:
        """What it has, decoded, by the last part of the key."""
        self.expire()
        return {
            key.split("/", 4)[-1]: orjson.loads(base64.b64decode(entry.value)) for key, entry in self.entries.items()
        }

    def forget(self, key_end: str) -> None:
        """Let a key go, as a lease that ran out does."""
        for key in [key for key in self.entries if key.endswith(key_end)]:
            del self.entries[key]
        self._touch()

    # --- serving ---------------------------------------------------------------------------

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The connection is noted at once: at a test's end its task may be cancelled before it has begun."""
        task = asyncio.get_running_loop().create_task(self._serve_one(reader, writer))
        self._serving[task] = writer
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._serving.pop(task).transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._serve(reader, writer)

    async def close(self) -> None:
        """Let go of all connections."""
        for task in (tasks := list(self._serving)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split()[1].removeprefix("/v3/")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        request = orjson.loads(await reader.readexactly(int(fields["content-length"])))
        if self.down or self.lose_request(path):
            return
        if self.says_instead:
            text = self.says_instead.encode()
            writer.write(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        elif self.users and path != "auth/authenticate" and fields.get("authorization") not in self.tokens:
            self._answer(writer, 401, {"error": "invalid auth token", "code": 16})
        elif path == "watch":
            await self._watch(request["create_request"], writer)
            return
        else:
            status, answer = self.call(path, request)
            if self.lose_answer(path):
                return
            self._answer(writer, status, answer)
        await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    @staticmethod
    def _answer(writer: asyncio.StreamWriter, status: int, answer: Any) -> None:
        body = orjson.dumps(answer)
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _watch(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        start = int(request.get("start_revision", 0))
        self._chunk(writer, {"result": {"created": True}})
        while True:
            changed = self.changed
            self.expire()
            if self.revision >= start:
                self._chunk(writer, {"result": {"events": [{}]}})
                start = self.revision + 1
            await writer.drain()
            with anyio.move_on_after(0.1):
                await changed.wait()

    @staticmethod
    def _chunk(writer: asyncio.StreamWriter, message: Any) -> None:
        line = orjson.dumps(message) + b"\n"
        writer.write(b"%x\r\n" % len(line) + line + b"\r\n")

    # --- what it keeps ---------------------------------------------------------------------

    def _touch(self) -> int:
        self.revision += 1
        changed, self.changed = self.changed, anyio.Event()
        changed.set()
        return self.revision

    def expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for lease, (_, until) in list(self.leases.items()):
            if until < now:
                self._revoke(lease)

    def _revoke(self, lease: str) -> None:
        self.leases.pop(lease, None)
        gone = [key for key, entry in self.entries.items() if entry.lease == lease]
        for key in gone:
            del self.entries[key]
        if gone:
            self._touch()

    def call(self, path: str, request: dict[str, Any]) -> tuple[int, Any]:
        self.expire()
        header = {"revision": str(self.revision)}
        if path == "kv/range":
            first, last = _decoded(request["key"]), _decoded(request["range_end"])
            found = [
                {"key": base64.b64encode(key.encode()).decode(), "value": entry.value,
                 "mod_revision": str(entry.revision)}
                for key, entry in sorted(self.entries.items()) if first <= key < last
            ]  # fmt: skip
            return 200, {"header": header, "kvs": found}
        if path == "kv/put":
            return self._put(_decoded(request["key"]), request["value"], request.get("lease", "0"))
        if path == "kv/txn":
            (compare,) = request["compare"]
            entry = self.entries.get(_decoded(compare["key"]))
            wanted = int(compare.get("mod_revision") or compare.get("create_revision") or 0)
            if (0 if entry is None else entry.revision) != wanted:
                return 200, {"header": header}
            put = request["success"][0]["request_put"]
            _, answer = self._put(_decoded(put["key"]), put["value"], "0")
            return 200, {**answer, "succeeded": True}
        if path == "lease/grant":
            lease = str(1000 + self._touch())
            seconds = float(request["TTL"])
            self.leases[lease] = (seconds, asyncio.get_running_loop().time() + seconds)
            return 200, {"ID": lease, "TTL": request["TTL"]}
        if path == "lease/keepalive":
            if request["ID"] not in self.leases:
                return 200, {"result": {"ID": request["ID"]}}
            seconds, _ = self.leases[request["ID"]]
            self.leases[request["ID"]] = (seconds, asyncio.get_running_loop().time() + seconds)
            return 200, {"result": {"ID": request["ID"], "TTL": str(int(seconds))}}
        if path == "lease/revoke":
            self._revoke(request["ID"])
            return 200, {"header": header}
        if path == "auth/authenticate":
            if self.users.get(request["name"]) != request["password"]:
                return 400, {"error": "authentication failed, invalid user ID or password", "code": 3}
            self.tokens.add(f"token{len(self.tokens)}")
            return 200, {"token": f"token{len(self.tokens) - 1}"}
        return 404, {"error": "Not Found", "code": 5}

    def _put(self, key: str, value: str, lease: str) -> tuple[int, Any]:
        if lease != "0" and lease not in self.leases:
            return 404, {"error": "requested lease not found", "code": 5}
        revision = self._touch()
        self.entries[key] = Entry(value, revision, lease)
        return 200, {"header": {"revision": str(revision)}}


@asynccontextmanager
async def running_gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    gateway.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield gateway
    finally:
        server.close()
        gateway.set_down(True)
        await gateway.close()
