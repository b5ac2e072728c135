"""``verniermq trace``: what happened to one message: where it lies, which groups have it, and its traces.

Which groups have it is known of every message: a group whose offset lies behind it has it. Traces are there when the
producer, the consumer or the broker has the plugin ``trace``, or a Java client writes them. Works on Apache's too.
"""

from __future__ import annotations

from datetime import datetime

import attrs
import click

from verniermq.cli.client import connection, json_option, namesrv_option, print_json, run, table
from verniermq.cli.formats import as_json as message_as_json
from verniermq.client.admin import Admin
from verniermq.client.errors import MessageNotFound, NoRoute
from verniermq.client.message import ReceivedMessage
from verniermq.kernel import RETRY_PREFIX, TRACE_TOPIC
from verniermq.plugins.sendhooks.records import FIELD_END, RECORD_END, Ending

MOST = 64


@attrs.frozen
class GroupState:
    """Whether a group has a message."""

    group: str
    has_it: bool
    before: int
    """Messages that it has yet to consume before this one, in its queue."""


@attrs.frozen
class TraceEvent:
    """One line of the history of a message."""

    time_ms: int
    what: str
    group: str
    host: str
    took_ms: int | None
    ended: str


@click.command()
@click.argument("message_id", metavar="ID")
@click.option("--topic", help="The topic; needed to find a unique key, the id that producers see.")
@namesrv_option
@json_option
def trace(message_id: str, topic: str | None, namesrv: str, as_json: bool) -> None:
    """Show what happened to the message with this ID: where it lies, which groups have consumed it, its traces.

    Exit code 1 if neither the message nor a trace of it is found.
    """

    async def work() -> tuple[ReceivedMessage | None, list[GroupState], list[TraceEvent]]:
        async with Admin(**connection(namesrv)) as admin:
            try:
                message = await admin.message(message_id, topic)
            except MessageNotFound:
                message = None
            states = await _states(admin, message) if message is not None else []
            return message, states, await _events(admin, message.message_id if message is not None else message_id)

    message, states, events = run(work)
    if message is None and not events:
        hint = "" if topic else "; if it is a unique key, name its topic with --topic"
        raise click.ClickException(f"neither the message {message_id} nor a trace of it is there{hint}")
    if as_json:
        print_json({
            "message": None if message is None else message_as_json(message),
            "groups": [attrs.asdict(state) for state in states], "trace": [attrs.asdict(event) for event in events],
        })  # fmt: skip
        return
    if message is None:
        click.echo(f"message {message_id} is gone; its traces are there")
    else:
        where = f"{message.queue.broker_name} queue {message.queue.queue_id} offset {message.queue_offset}"
        click.echo(f"message {message.message_id}")
        click.echo(f"topic {message.topic}, {where}")
        click.echo(f"born {_moment(message.born_timestamp)}, stored {_moment(message.store_timestamp)}")
        table(["group", "state"], [
            [state.group, "has consumed it" if state.has_it else f"waits; {state.before} before it"] for state in states
        ])  # fmt: skip
        if not states:
            click.echo("no group consumes its topic")
    table(["time", "what", "group", "host", "took ms", "ended"], [
        [_moment(event.time_ms)[11:], event.what, event.group, event.host or "-",
         "-" if event.took_ms is None else str(event.took_ms), event.ended] for event in events
    ])  # fmt: skip
    if not events:
        click.echo("no traces; clients and brokers with the plugin trace leave some")


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "milliseconds")


async def _states(admin: Admin, message: ReceivedMessage) -> list[GroupState]:
    found = []
    for group in await admin.groups_of(message.topic):
        for row in (await admin.group_progress(group)).queues:
            place = (row.queue.topic, row.queue.queue_id, row.queue.broker_name)
            if place == (message.topic, message.queue.queue_id, message.queue.broker_name):
                before = message.queue_offset - row.committed
                found.append(GroupState(group, before < 0, max(0, before)))
    return found


async def _events(admin: Admin, message_id: str) -> list[TraceEvent]:
    try:
        messages = await admin.messages_by_key(TRACE_TOPIC, message_id, limit=MOST)
    except NoRoute:
        return []
    events: list[TraceEvent] = []
    begins: dict[str, tuple[str, str]] = {}
    records = [
        (message, fields)
        for message in reversed(messages)
        for fields in (text.split(FIELD_END) for text in message.body.decode(errors="replace").split(RECORD_END))
        if message_id in fields
    ]
    ends = {fields[1] for _, fields in records if fields[0] == "SubAfter"}
    for message, fields in records:
        match fields:
            case ["SubBefore", time_ms, _, group, request_id, *_]:
                group = group.removeprefix(RETRY_PREFIX)
                begins[request_id] = group, _host(message)
                if request_id not in ends and time_ms.isdecimal():
                    events.append(TraceEvent(int(time_ms), "handed out", group, _host(message), None, "not yet"))
    for message, fields in records:
        if (event := _event(message, fields, begins)) is not None:
            events.append(event)
    return sorted(events, key=lambda event: event.time_ms)


def _event(message: ReceivedMessage, fields: list[str], begins: dict[str, tuple[str, str]]) -> TraceEvent | None:
    """Of a record with these fields; ``None`` if it is no record, or only tells that a delivery begins."""
    try:
        match fields:
            case ["Pub", time_ms, _, group, _, _, _, _, _, _, took, _, _, success, *_]:
                return TraceEvent(int(time_ms), "sent", group, _host(message), int(took), _success(success))
            case ["SubAfter", request_id, _, took, success, _, ending, *more]:
                group, host = begins.get(request_id, ("", _host(message)))
                moment, group = (int(more[0]), more[1]) if len(more) > 1 else (message.born_timestamp, group)
                ended = Ending(int(ending)).name.lower() if ending.isdecimal() else _success(success)
                return TraceEvent(moment, "consumed", group.removeprefix(RETRY_PREFIX), host, int(took), ended)
            case ["EndTransaction", time_ms, _, group, _, _, _, _, _, _, _, state, *_]:
                return TraceEvent(int(time_ms), "transaction", group, _host(message), None, state.lower())
            case ["Recall", time_ms, _, group, _, _, success, *_]:
                return TraceEvent(int(time_ms), "recalled", group, _host(message), None, _success(success))
    except ValueError:
        pass  # a record of another kind of client, or damaged
    return None


def _success(text: str) -> str:
    return "success" if text == "true" else "failed"


def _host(message: ReceivedMessage) -> str:
    return str(message.born_host).rpartition(":")[0]
