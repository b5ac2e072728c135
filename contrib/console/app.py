"""The console as a web application: each view as HTML, as JSON behind ``.json``, and live behind ``.live``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from verniermq.contrib.console.console import Console
from verniermq.contrib.console.headers import Guarded
from verniermq.contrib.console.posts import Posts, set_cookie
from verniermq.contrib.console.render import STATIC, environment
from verniermq.contrib.console.session import COOKIE
from verniermq.contrib.console.settings import listen_address
from verniermq.contrib.console.view import BadAddress, Look, NoSuchPage, Shown, View
from verniermq.kernel import RemotingError

logger = logging.getLogger(__name__)

LIVE_SECONDS: Final = 2.0
FILES: Final = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
NO_MAIN: Final = b"event: same\ndata:\n\n"

Endpoint = Callable[[Request], Awaitable[Response]]


class ConsoleApp:
    """Serves views."""

    def __init__(self, console: Console, views: Sequence[View]) -> None:
        self._console = console
        self._views = views
        self._menu = [view for view in views if view.menu]
        self._templates: Environment = environment()
        self.stopping = asyncio.Event()
        """Ends the live pages, which would go on for ever."""

    def asgi(self, keeps_open: bool = True) -> ASGIApp:
        routes = [Route("/static/{digest}/{file}", self._static)]
        for view in self._views:
            path = "/index" if view.path == "/" else view.path
            # The longer endings first: a name in an address takes everything up to the next slash.
            routes.append(Route(f"{path}.json", self._endpoint(view, self._json)))
            routes.append(Route(f"{path}.live", self._endpoint(view, self._live)))
            routes.append(Route(view.path, self._endpoint(view, self._html)))
        posts = Posts(self._console, self.page)
        routes.append(Route("/do/{name}", posts.act, methods=["POST"]))
        routes.append(Route("/login", self._login))
        routes.append(Route("/login", posts.login, methods=["POST"]))
        routes.append(Route("/logout", posts.logout, methods=["POST"]))
        app = Starlette(routes=routes, exception_handlers={404: self._no_page})
        return Guarded(app, listen_address(self._console.config.listen)[0], self._console.has_accounts, keeps_open)

    def _endpoint(self, view: View, answer: Callable[[View, Request, Look], Awaitable[Response]]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            cookie = request.cookies.get(COOKIE, "")
            if self._console.has_accounts and self._console.sessions.account(cookie) is None:
                if answer != self._html:
                    return Response(b'{"error": "log in first"}', 401, media_type="application/json")
                return RedirectResponse("/login", 303)
            look = self._look(request)
            try:
                return await answer(view, request, look)
            except BadAddress as error:
                return self.page(request, "error.html", str(error), {"why": str(error)}, status=error.status)
            except RemotingError as error:
                data = {"why": f"{error}. The page comes back when a broker does."}
                return self.page(request, "error.html", "No answer", data, status=502)

        return endpoint

    def _look(self, request: Request) -> Look:
        asks = self._console.inquiry(request.cookies.get(COOKIE, ""))
        return Look(self._console, asks, request.path_params, dict(request.query_params))

    # --- one view, three ways --------------------------------------------------------------

    async def _html(self, view: View, request: Request, look: Look) -> Response:
        return self._view_page(request, view, look, await view.show(look))

    async def _json(self, view: View, request: Request, look: Look) -> Response:
        shown = await view.show(look)
        body = {"title": shown.title, **shown.data, "command": shown.command, "troubles": look.ask.troubles}
        return Response(orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS), 200,
                        media_type="application/json")  # fmt: skip

    async def _live(self, view: View, request: Request, look: Look) -> Response:
        changes = self._changes(view, request) if view.follow is None else self._rows(view.follow(look))
        return StreamingResponse(changes, media_type="text/event-stream")

    async def _rows(self, follow: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[bytes]:
        template = self._templates.get_template("messagerows.html")
        try:
            async for data in follow:
                yield _event("rows", template.render(**data)) if data["rows"] else NO_MAIN
                if self.stopping.is_set():
                    break
        except (BadAddress, RemotingError) as error:
            yield _event("trouble", str(error))

    async def _changes(self, view: View, request: Request) -> AsyncIterator[bytes]:
        """The main part of the page, each time that it looks different."""
        before = ""
        token = self._console.sessions.token(request.cookies.get(COOKIE, ""))
        acting = {"token": token, "may_act": not self._console.config.read_only}
        while not self.stopping.is_set():
            look = self._look(request)
            try:
                shown = await view.show(look)
                context = {**self._context(request, view, look, shown), "layout": "fragment.html", **acting}
                main = self._templates.get_template(view.template).render(**context)
                yield _event("main", main) if main != before else NO_MAIN
                before = main
            except (BadAddress, RemotingError) as error:
                yield _event("trouble", str(error))
                before = ""
            try:
                async with asyncio.timeout(LIVE_SECONDS):
                    await self.stopping.wait()
            except TimeoutError:
                continue

    # --- pages -----------------------------------------------------------------------------

    def _context(self, request: Request, view: View | None, look: Look, shown: Shown) -> dict[str, Any]:
        path = request.url.path.removesuffix(".live")
        return {
            **shown.data,
            "title": shown.title,
            "command": shown.command,
            "is_same": shown.is_same,
            "troubles": look.ask.troubles,
            "view": view,
            "menu": self._menu,
            "config": self._console.config,
            "path": "/" if path == "/index" else path,
            "json_path": "/index.json" if path in ("/", "/index") else f"{path}.json",
            "live_path": ("/index.live" if path in ("/", "/index") else f"{path}.live") if view and view.live else "",
            "query": look.query,
            "now_ms": round(time.time() * 1000),
            "layout": "layout.html",
        }

    def _view_page(self, request: Request, view: View, look: Look, shown: Shown) -> Response:
        return self._rendered(request, view.template, self._context(request, view, look, shown))

    def page(self, request: Request, template: str, title: str, data: dict[str, Any], status: int = 200) -> Response:
        """A page that is no view: an error, a plan, what came of it."""
        if request.url.path.endswith(".json"):
            return Response(orjson.dumps({"error": data["why"]}), status, media_type="application/json")
        look = Look(self._console, self._console.inquiry(), {}, {})
        context = self._context(request, None, look, Shown(title, data, ""))
        return self._rendered(request, template, context, status)

    def _rendered(self, request: Request, template: str, context: dict[str, Any], status: int = 200) -> Response:
        """A browser that comes for the first time gets a cookie, from which the tokens of its forms are made."""
        cookie = request.cookies.get(COOKIE) or self._console.sessions.new_cookie()
        account = self._console.sessions.account(cookie) if self._console.has_accounts else None
        context |= {
            "token": self._console.sessions.token(cookie),
            "account": account.access_key if account is not None else "",
            "may_act": not self._console.config.read_only,
        }
        answer = HTMLResponse(self._templates.get_template(template).render(**context), status)
        if COOKIE not in request.cookies:
            set_cookie(answer, cookie)
        return answer

    async def _login(self, request: Request) -> Response:
        return self.page(request, "login.html", "Log in", {"why": ""})

    async def _no_page(self, request: Request, error: Exception) -> Response:
        why = "there is no such page; the menu lists what there is"
        return self.page(request, "error.html", "No such page", {"why": why}, 404)

    async def _static(self, request: Request) -> Response:
        file = request.path_params["file"]
        if file not in FILES:
            return await self._no_page(request, NoSuchPage(file))
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return FileResponse(STATIC / file, media_type=FILES[file], headers=headers)


def _event(name: str, text: str) -> bytes:
    lines = "\n".join(f"data: {line}" for line in text.splitlines())
    return f"event: {name}\n{lines}\n\n".encode()
