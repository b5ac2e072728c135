"""``/plugins``: which plugins the brokers run and how they do; ``/plugins/{broker}/{page}``: what a plugin shows."""

from __future__ import annotations

from typing import Any, Final

import orjson

from verniermq.contrib.console.view import Look, NoSuchPage, Shown, View
from verniermq.kernel import RequestCode, ResponseCode, parse_answer
from verniermq.plugins.admin.requests import GetPluginPage

NOT_SERVED: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,)
"""Apache's brokers have no plugins to tell of."""


async def plugins(look: Look) -> Shown:
    answers = await look.ask.each(RequestCode.GET_PLUGINS, fine=NOT_SERVED)
    rows = [{"broker": broker, **row} for broker, body in answers.items() for row in body.get("plugins") or ()]
    pages = [
        {"broker": row["broker"], "plugin": row["name"], **page, "at": page["path"].removeprefix("/")}
        for row in rows
        for page in row["pages"]
    ]
    data = {"rows": rows, "pages": pages, "failures": sum(row["failures"] for row in rows), "brokers": len(answers)}
    return Shown("Plugins", data, "verniermq plugins")


async def plugin_page(look: Look) -> Shown:
    broker, path = look.path["name"], f"/{look.path['page']}"
    address = (await look.ask.masters()).get(broker)
    listed = await look.ask.each(RequestCode.GET_PLUGINS, brokers=[broker], fine=NOT_SERVED)
    titles = {
        page["path"]: (page["title"], row["name"])
        for row in listed.get(broker, {}).get("plugins") or ()
        for page in row["pages"]
    }
    if address is None or path not in titles:
        raise NoSuchPage(f"there is no page {path!r} of a plugin of broker {broker!r}; the page Plugins lists them")
    asked = GetPluginPage(path=path, query=look.query).command()
    found = parse_answer((await look.ask.ask(address, asked)).body, address, "GET_PLUGIN_PAGE")
    title, plugin = titles[path]
    data = {"broker": broker, "plugin": plugin, "text": found.get("text"), "tables": tables(found.get("data"))}
    return Shown(title, data, f"verniermq plugins show {plugin}")


def tables(data: Any) -> list[dict[str, Any]]:
    """Data as tables: a list of mappings is one, single values are pairs, and what is inside them is shown as JSON."""
    if isinstance(data, list):
        return [_table("", data)]
    if not isinstance(data, dict):
        return []
    lists = {name: value for name, value in data.items() if _is_table(value)}
    pairs = [[str(name), _text(value)] for name, value in data.items() if name not in lists]
    first = [{"title": "", "columns": [], "rows": pairs}] if pairs else []
    return first + [_table(str(name), value) for name, value in lists.items()]


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _table(title: str, rows: list[Any]) -> dict[str, Any]:
    if not _is_table(rows):
        return {"title": title, "columns": [], "rows": [[_text(row)] for row in rows]}
    columns = list(dict.fromkeys(str(name) for row in rows for name in row))
    return {"title": title, "columns": columns, "rows": [[_text(row.get(name)) for name in columns] for row in rows]}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


VIEWS: Final = (
    View("/plugins", "plugins.html", plugins, "Plugins"),
    View("/plugins/{name}/{page:path}", "pluginpage.html", plugin_page),
)
