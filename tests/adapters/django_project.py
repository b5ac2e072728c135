"""The tasks of the tests of Django; a module, since tasks are found by their names."""

from __future__ import annotations

from typing import Any

from django_tasks import task

ran: list[Any] = []


@task
def add(x: int, y: int) -> int:
    ran.append(x + y)
    return x + y


@task
async def add_later(x: int, y: int) -> int:
    ran.append(("async", x + y))
    return x + y


@task(takes_context=True)
def fail(context: Any) -> None:
    raise ValueError(f"attempt {context.attempt}")
