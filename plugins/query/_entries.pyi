from collections.abc import Callable
from mmap import mmap

SOURCE: int

def keys_of_run(
    topic: int,
    uniques: list[bytes],
    keys: list[bytes],
    offsets: list[int],
    time: int,
    other: Callable[[int, str], int],
) -> list[tuple[int, int, int]]: ...
def put(
    table: mmap,
    reserved: bytearray,
    piece_bits: int,
    slots: int,
    first_entry: int,
    count: int,
    begin: int,
    keys: list[tuple[int, int, int]],
    number: int,
) -> tuple[int, int]: ...
def find_newest(data: bytes, first: int, slots: int, newest: dict[int, int]) -> None: ...
