"""Pages over HTTP: whether the broker is alive and ready, and whatever other plugins show (RocketMQ has none).

``/livez`` says whether a restart would help, ``/readyz`` whether clients should come. Nothing here changes anything,
asks for a password or speaks TLS: it listens on loopback unless it is told otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from verniermq.kernel import Context, Declaration, Page, PageAnswer, PluginError, Registry, hookimpl, setting
from verniermq.plugins.http.server import HttpServer, as_json, listen_address, other_pages

logger = logging.getLogger(__name__)


def _is_address(text: str) -> str | None:
    try:
        listen_address(text)
    except ValueError:
        return 'host:port, such as "127.0.0.1:8088" or "[::1]:8088"'
    return None


@attrs.frozen
class Config:
    """``[plugins.http]``"""

    listen: str = setting(
        "127.0.0.1:8088", "Where pages are served, host:port; port 0 takes a free one.", check=_is_address
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1, config=Config, summary="Serves pages over HTTP: health, and those of other plugins.",
        on_failure="closed", hookspecs=(other_pages,),
    )  # fmt: skip
    config: Config
    broker: Context
    servers: dict[str, HttpServer] = attrs.field(factory=dict, init=False)
    """By the address that was asked for."""
    _stopping: bool = attrs.field(default=False, init=False)

    def setup(self, registry: Registry) -> None:
        registry.page("/livez", self.alive)
        registry.page("/readyz", self.ready)
        registry.page("/healthz", self.ready)
        registry.check("messages are taken", self._why_not_writable)
        registry.check("plugins are active", self._why_not_whole)

    @hookimpl
    async def broker_started(self) -> None:
        pages: dict[str, dict[str, Page]] = {self.config.listen: {}}
        for page in self.broker.pages:
            there = pages.setdefault(page.listen or self.config.listen, {})
            if page.path in there:
                first = there[page.path].plugin
                raise PluginError(f"page {page.path!r} is of two plugins, {first!r} and {page.plugin!r}", page.plugin)
            there[page.path] = page
        for listen, found in pages.items():
            others = self.broker.hooks.ask(other_pages) if listen == self.config.listen else None
            server = HttpServer(list(found.values()), self._failed, others)
            try:
                await server.start(listen)
            except (OSError, ValueError) as error:
                raise PluginError(
                    f"cannot serve pages on {listen}: {error}; choose another address in [plugins.http] or of the "
                    f"plugin whose pages these are: {', '.join(found)}"
                ) from error
            self.servers[listen] = server
            logger.info("pages are served address=http://%s pages=%s", server.address, " ".join(found))

    @hookimpl(tryfirst=True)
    async def broker_stopping(self) -> None:
        self._stopping = True
        for server in self.servers.values():
            await server.stop()

    def address_of(self, path: str) -> str:
        """``host:port`` where a page is served, once the broker has started."""
        listen = next(page.listen for page in self.broker.pages if page.path == path)
        return self.servers[listen or self.config.listen].address

    def _failed(self, page: Page, error: Exception) -> None:
        logger.error("page failed page=%s plugin=%s", page.path, page.plugin, exc_info=error)

    # --- health ----------------------------------------------------------------------------

    def alive(self, query: Mapping[str, str]) -> PageAnswer:
        """That this is answered at all says that the loop goes on; what a restart cures is a disk that failed."""
        broken = self.broker.store.broken
        return as_json({"alive": broken is None, "why": broken or ""}, 200 if broken is None else 503)

    def ready(self, query: Mapping[str, str]) -> PageAnswer:
        checks: list[dict[str, Any]] = [{"check": "not stopping", "ready": not self._stopping, "why": ""}]
        for check in self.broker.checks:
            try:
                why = check.why_not()
            except Exception as error:
                why = f"the check failed: {type(error).__name__}: {error}"
                logger.error("check failed check=%s plugin=%s", check.name, check.plugin, exc_info=error)
            checks.append({"check": check.name, "plugin": check.plugin, "ready": why is None, "why": why or ""})
        is_ready = all(check["ready"] for check in checks)
        return as_json({"ready": is_ready, "broker": self.broker.name, "checks": checks}, 200 if is_ready else 503)

    def _why_not_writable(self) -> str | None:
        return "; ".join(self.broker.store.refusals.values()) or None

    def _why_not_whole(self) -> str | None:
        off = [f"{plugin.name}: {plugin.reason}" for plugin in self.broker.hooks.active.values() if plugin.reason]
        return "; ".join(off) or None
