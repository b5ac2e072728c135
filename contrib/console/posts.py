"""Forms that are sent: log in and out, plan an action, do it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from verniermq.client.credentials import Credentials
from verniermq.contrib.console.action import ActionRefused
from verniermq.contrib.console.actions import ACTIONS
from verniermq.contrib.console.console import Console
from verniermq.contrib.console.session import COOKIE
from verniermq.contrib.console.view import BadAddress, Look
from verniermq.kernel import Command, RemotingError, RequestCode, UnexpectedAnswer

LARGEST_FORM: Final = 256 * 1024
MOST_FIELDS: Final = 500

PageMaker = Callable[..., Response]


class Posts:
    """
    Args:
        page: makes a page from a request, a template, a title and its data
    """

    def __init__(self, console: Console, page: PageMaker) -> None:
        self._console = console
        self._page = page

    async def act(self, request: Request) -> Response:
        """Show the plan of an action, or do what a plan says that this browser was shown."""
        cookie = request.cookies.get(COOKIE, "")
        try:
            form = await self._form(request, cookie)
            if self._console.config.read_only:
                raise ActionRefused("the console is read-only; set read_only = false in [plugins.console]")
            if self._console.has_accounts and self._console.sessions.account(cookie) is None:
                return RedirectResponse("/login", 303)
            action = ACTIONS.get(request.path_params["name"])
            if action is None:
                return self._page(request, "error.html", "No such action", {"why": "there is no such action"}, 404)
            look = Look(self._console, self._console.inquiry(cookie), {}, {})
            if "steps" not in form:
                plan = await action.plan(look, form)
                steps = orjson.dumps(plan.steps).decode()
                seal = self._seal(cookie, action.name, steps, plan.typed)
                data = {"plan": plan, "steps": steps, "seal": seal, "action": action, "form": form}
                return self._page(request, "plan.html", action.title, data)
            done = await self._do(request, look, action.name, form, cookie)
        except (ActionRefused, BadAddress) as error:
            return self._page(request, "error.html", "Not done", {"why": str(error)}, 403)
        except RemotingError as error:
            return self._page(request, "error.html", "Not done", {"why": str(error)}, 502)
        return self._page(request, "done.html", action.title, {"done": done, "back": _path(form.get("back", "/"))})

    async def _do(self, request: Request, look: Look, name: str, form: dict[str, str], cookie: str) -> str:
        steps, typed = form["steps"], form.get("wanted", "")
        if not secrets.compare_digest(self._seal(cookie, name, steps, typed).encode(), form.get("seal", "").encode()):
            raise ActionRefused("this is not the plan that was shown; plan it again")
        if typed and form.get("typed", "").strip() != typed:
            raise ActionRefused(f"{form.get('typed', '')[:100]!r} was typed, not {typed!r}; nothing is changed")
        who = look.ask.who
        address = request.client.host if request.client else ""
        what = form.get("what", "")[:500]
        try:
            done = await ACTIONS[name].run(look, form, orjson.loads(steps))
        except (ActionRefused, RemotingError) as error:
            self._console.audit.note(who, address, name, what, f"failed: {error}")
            raise
        self._console.audit.note(who, address, name, what, done)
        self._console.cluster.forget()
        return done

    def _seal(self, cookie: str, *words: str) -> str:
        return self._console.sessions.token("\0".join((cookie, "plan", *words)))

    async def _form(self, request: Request, cookie: str) -> dict[str, str]:
        """The fields of a form that a page of ours was sent with; several of one name become one text.

        Raises:
            ActionRefused: it is none.
        """
        if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
            raise ActionRefused("a form is expected")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > LARGEST_FORM:
                raise ActionRefused(f"a form has at most {LARGEST_FORM} bytes")
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
        except ValueError:
            raise ActionRefused("this is no form, or has too many fields") from None
        form: dict[str, str] = {}
        for name, value in pairs:
            form[name] = f"{form[name]} {value}" if name in form else value
        if not self._console.sessions.is_token(cookie, form.get("token", "")):
            raise ActionRefused("the form was not made for this browser; load the page again")
        return form

    # --- accounts --------------------------------------------------------------------------

    async def login(self, request: Request) -> Response:
        cookie = request.cookies.get(COOKIE, "")
        address = request.client.host if request.client else ""
        who = ""
        try:
            form = await self._form(request, cookie)
            who = form.get("account", "")
            credentials = Credentials(who, form.get("secret", ""))
            await self._check(credentials)
        except (ActionRefused, RemotingError) as error:
            self._console.audit.note(who[:100], address, "login", "", "failed")
            await asyncio.sleep(1)  # so that guessing takes its time
            return self._page(request, "login.html", "Log in", {"why": str(error)}, 403)
        self._console.audit.note(credentials.access_key, address, "login", "", "logged in")
        answer = RedirectResponse("/", 303)
        set_cookie(answer, self._console.sessions.open(credentials))
        return answer

    async def _check(self, credentials: Credentials) -> None:
        """
        Raises:
            ActionRefused: the brokers do not know the account, or know no accounts at all.
            RemotingError: none of them answers.
        """
        if not credentials.access_key or not credentials.secret_key:
            raise ActionRefused("an account and its secret are needed")
        asks = self._console.cluster.inquiry(credentials)
        forged = self._console.cluster.inquiry(Credentials(credentials.access_key, secrets.token_hex(16)))
        for address in (await asks.masters()).values():
            try:
                await asks.ask(address, Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
            except UnexpectedAnswer as error:
                raise ActionRefused(f"the brokers refuse this account: {error.remark}") from None
            try:
                await forged.ask(address, Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
            except UnexpectedAnswer:
                continue  # as it should be
            raise ActionRefused(f"broker {address} does not check accounts; enable its plugin acl")

    async def logout(self, request: Request) -> Response:
        cookie = request.cookies.get(COOKIE, "")
        try:
            await self._form(request, cookie)
        except ActionRefused as error:
            return self._page(request, "error.html", "Not done", {"why": str(error)}, 403)
        self._console.sessions.close(cookie)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer


def set_cookie(answer: Response, cookie: str) -> None:
    answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")


def _path(text: str) -> str:
    """A page of ours, whatever the form says."""
    return text if text.startswith("/") and not text.startswith("//") and "\\" not in text else "/"
