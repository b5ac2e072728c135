from collections.abc import Callable, Sequence
from typing import Any

SOURCE: int

class Topic:
    def __init__(self, name: str, queues: int, field: bytes) -> None: ...

class Column:
    topic: str
    queue_id: int
    first: int
    offsets: list[int]
    sizes: list[int]
    codes: list[int]
    uniques: list[bytes]
    keys: list[bytes]
    texts: list[bytes]
    rests: list[bytes]
    born: list[int]
    head_size: int

class Lane:
    def __init__(
        self,
        topics: dict[bytes, Topic],
        queues: dict[tuple[str, int], Any],
        sends: Any,
        batches: Any,
        added: bytes,
        *,
        longest_frame: int,
        longest_header: int,
        largest: int,
        most: int,
    ) -> None: ...
    def take(
        self,
        data: bytes,
        start: int,
        offset: int,
        room: int,
        born_host: bytes,
        store_host: bytes,
        now: int,
        language: bytes,
        version: int,
        binary: bool,
        passing: dict[tuple[bytes, str], bool] | None,
        ask: Callable[[tuple[bytes, str]], bool],
    ) -> tuple[int, bytes, bytes, Sequence[Column]]: ...
    def totals(self) -> tuple[int, ...]: ...
    def take_back(self) -> None: ...
