"""Which plugins run, how they do, and the pages that they bring, for a console (RocketMQ has none).

GET_PLUGINS (32104) is a request without fields; its answer's body is::

    {"plugins": [{"name": "flow", "state": "active", "reason": "", "summary": "…", "from": "built in", "failures": 0,
                  "milliseconds": 1.5, "hooks": [{"hook": "before_request", "failures": 0, "milliseconds": 1.5}],
                  "pages": [{"path": "/runtime", "title": "Runtime figures"}]}]}

GET_PLUGIN_PAGE (32105) has the field ``path`` and the query as a JSON object in its body; its answer's body is
``{"data": …}``, or ``{"text": …}`` for a page that answers with bytes of its own. Only pages with a title are given.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Handler,
    InvalidParameter,
    Page,
    PageAnswer,
    RequestCode,
)
from verniermq.plugins.admin.requests import GetPluginPage

MOST_TEXT: Final = 256 * 1024
"""Bytes of a page's own."""


class PluginRequests:
    def __init__(self, broker: Context) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.GET_PLUGINS: self.plugins, RequestCode.GET_PLUGIN_PAGE: self.page}

    def plugins(self, request: Command, connection: Connection) -> Command:
        pages: dict[str, list[Page]] = {}
        for page in self._broker.pages:
            if page.title:
                pages.setdefault(page.plugin, []).append(page)
        rows = []
        for plugin in self._broker.hooks.active.values():
            hooks: list[dict[str, Any]] = [
                {"hook": hook, "failures": call.failures, "milliseconds": call.nanoseconds / 1e6}
                for hook, call in plugin.calls.items()
            ]
            hooks.append({
                "hook": "requests", "failures": plugin.served.failures, "milliseconds": plugin.served.nanoseconds / 1e6,
            })  # fmt: skip
            rows.append({
                "name": plugin.name, "state": plugin.state, "reason": plugin.reason,
                "summary": plugin.declaration.summary, "from": plugin.candidate.origin, "failures": plugin.failures,
                "milliseconds": sum(row["milliseconds"] for row in hooks), "hooks": hooks,
                "pages": [{"path": page.path, "title": page.title} for page in pages.get(plugin.name, ())],
            })  # fmt: skip
        return request.reply(body=orjson.dumps({"plugins": rows}))

    async def page(self, request: Command, connection: Connection) -> Command:
        asked = GetPluginPage.of(request)
        for page in self._broker.pages:
            if page.title and page.path == asked.path:
                content = page.serve(asked.query)
                return request.reply(body=_body(await content if inspect.isawaitable(content) else content))
        raise InvalidParameter(f"no plugin brings a page {asked.path!r} with a title; GET_PLUGINS lists them")


def _body(content: Any) -> bytes:
    if not isinstance(content, PageAnswer):
        return orjson.dumps({"data": content}, default=str, option=orjson.OPT_NON_STR_KEYS)
    whole = content.body if isinstance(content.body, bytes) else b"".join(content.body)
    return orjson.dumps({"text": whole[:MOST_TEXT].decode("utf-8", "replace")})
