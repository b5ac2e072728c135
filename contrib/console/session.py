"""Who sits before the browser: sessions of accounts, and the tokens that prove that a form came from a page of ours."""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Final

import attrs

from verniermq.client.credentials import Credentials

COOKIE: Final = "verniermq-console"
IDLE_SECONDS: Final = 8 * 3600.0
MOST: Final = 1000
"""Sessions at the same time; then the one that was idle longest ends."""


@attrs.define
class _Session:
    credentials: Credentials
    used: float


class Sessions:
    """What is known by a browser's cookie. The token of a form is made from the cookie, so no other site knows it."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._open: dict[str, _Session] = {}

    def new_cookie(self) -> str:
        return secrets.token_urlsafe(32)

    def token(self, cookie: str) -> str:
        return hmac.new(self._secret, cookie.encode(), "sha256").hexdigest()

    def is_token(self, cookie: str, token: str) -> bool:
        return bool(cookie) and hmac.compare_digest(self.token(cookie).encode(), token.encode())

    def open(self, credentials: Credentials) -> str:
        """Begin a session, under a cookie that nobody had before."""
        if len(self._open) >= MOST:
            del self._open[min(self._open, key=lambda cookie: self._open[cookie].used)]
        cookie = self.new_cookie()
        self._open[cookie] = _Session(credentials, time.monotonic())
        return cookie

    def account(self, cookie: str) -> Credentials | None:
        """Whose session it is."""
        found = self._open.get(cookie)
        now = time.monotonic()
        if found is None or now - found.used > IDLE_SECONDS:
            self._open.pop(cookie, None)
            return None
        found.used = now
        return found.credentials

    def close(self, cookie: str) -> None:
        self._open.pop(cookie, None)
