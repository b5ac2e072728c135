"""HTTP/1.1 as far as pages need it: heads of GET and HEAD requests in, whole answers out. No I/O.

Nothing has a body on the way in, so a request is its head: up to the first empty line, at most ``LARGEST_HEAD`` bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import attrs

from verniermq.kernel import PageAnswer

LARGEST_HEAD: Final = 16 * 1024
MOST_FIELDS: Final = 100
"""Names in the query of one address."""

REASONS: Final = {
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    414: "URI Too Long", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip


class HttpRefused(Exception):
    """A request that is answered with an error; the connection closes after it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@attrs.frozen
class HttpRequest:
    method: str
    path: str
    query: Mapping[str, str]
    host: str
    keep_alive: bool


def parse(head: bytes) -> HttpRequest:
    """The request of a head, which ends with an empty line.

    Raises:
        HttpRefused: it is no request that is served here.
    """
    line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not line.isascii():
        raise HttpRefused(400, "this is no HTTP/1.1 request line")
    method, target, version = (part.decode("ascii") for part in parts)
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.decode("latin-1").partition(":")
        if not colon or name != name.strip() or not name:
            raise HttpRefused(400, "a header field is 'name: value'")
        headers[name.lower()] = value.strip()
    if method not in ("GET", "HEAD"):
        raise HttpRefused(405, f"{method[:20]} is not served; pages are looked at with GET")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise HttpRefused(400, "a request for a page has no body")
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise HttpRefused(400, "the address begins with '/'")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
        path = unquote(path, errors="strict")
    except ValueError:
        raise HttpRefused(400, "the address is not encoded as UTF-8, or has too many parts") from None
    connection = headers.get("connection", "").lower()
    keep_alive = connection != "close" and (version == "HTTP/1.1" or connection == "keep-alive")
    return HttpRequest(method, path, dict(pairs), headers.get("host", ""), keep_alive)


def path_of(head: bytes) -> str:
    """The path that a request asks for, whatever else is in its head; "" if there is none."""
    parts = head.partition(b"\r\n")[0].split(b" ")
    return unquote(parts[1].partition(b"?")[0].decode("latin-1")) if len(parts) > 1 else ""


def encode(answer: PageAnswer, *, with_body: bool = True, keep_alive: bool = True) -> list[bytes]:
    """An answer in pieces. Nothing of it is kept by browsers and proxies, or taken for another type than it says."""
    body = [answer.body] if isinstance(answer.body, bytes) else answer.body
    head = (
        f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Other')}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {sum(map(len, body))}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
    )
    return [head.encode("ascii"), *(body if with_body else ())]
