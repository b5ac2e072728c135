"""What every answer says to browsers, and which requests are let in at all.

Nothing but the console's own files is loaded, nothing inline runs, no other site may show a page inside its own. A
request has to name the host that it was meant for: a foreign name that somebody points at 127.0.0.1 gets no answer.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verniermq.contrib.console.settings import is_loopback

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
ALWAYS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, browsers say that a form of our own came from nowhere (Origin: null), and it is refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LONGEST_ADDRESS: Final = 4096


class Guarded:
    """The application behind its checks."""

    def __init__(self, app: ASGIApp, host: str, any_host: bool = False, keeps_open: bool = True) -> None:
        self._app = app
        self._host = host
        self._any_host = any_host
        self._keeps_open = keeps_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if not self._keeps_open:
                    headers["Connection"] = "close"
            await send(message)

        refused = self._refused(scope)
        await (refused or self._app)(scope, receive, with_headers)

    def _refused(self, scope: Scope) -> PlainTextResponse | None:
        asked = Headers(scope=scope).get("host", "")
        if not self._is_known(asked.rpartition(":")[0] if not asked.endswith("]") and ":" in asked else asked):
            return PlainTextResponse(f"this console is not at {asked[:100]!r}; ask for it by its address\n", 421)
        if len(scope["raw_path"] or b"") + len(scope["query_string"]) > LONGEST_ADDRESS:
            return PlainTextResponse(f"an address has at most {LONGEST_ADDRESS} bytes\n", 414)
        if scope["method"] == "POST" and not _is_from_here(Headers(scope=scope), asked):
            return PlainTextResponse("this form is of another site\n", 403)
        return None

    def _is_known(self, name: str) -> bool:
        name = name.strip("[]").lower()
        return self._any_host or name == self._host.lower() or is_loopback(name)


def _is_from_here(headers: Headers, host: str) -> bool:
    """Browsers say from which site a form was sent."""
    site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
    return site == "same-origin" and (origin is None or origin.partition("://")[2] == host)
