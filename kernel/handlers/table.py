"""Who serves which code, and what class its requests are decoded to."""

from __future__ import annotations

from typing import Final

from verniermq.kernel.remoting import Handler
from verniermq.kernel.requests import Request, Undeclared


class HandlerTable:
    """The handlers of a server, by code. Registered again, the last one wins."""

    def __init__(self) -> None:
        self.handlers: Final[dict[int, Handler]] = {}
        self.requests: Final[dict[int, type[Request]]] = {}

    def serve(self, code: int, request: type[Request], handler: Handler) -> None:
        """Have requests of a code served. Their class says what they touch, and so who may send them."""
        self.handlers[code] = handler
        self.requests[code] = request

    def request_class(self, code: int) -> type[Request]:
        """What requests of a code are decoded to, by whoever checks them and by their handler."""
        return self.requests.get(code, Undeclared)
