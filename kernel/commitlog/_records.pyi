from collections.abc import Callable

from verniermq.kernel.commitlog.record import Buffer

SOURCE: int

class Column:
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    store_host: bytes
    sys_flag: int
    reconsume_times: int
    head_size: int
    offsets: list[int]
    sizes: list[int]
    codes: list[int]
    uniques: list[bytes]
    keys: list[bytes]
    texts: list[bytes]
    rests: list[bytes]
    born_timestamps: list[int]

def whole_record(data: Buffer, position: int, end: int, commit_log_offset: int) -> tuple[int | bytes, ...] | None: ...
def columns(
    data: Buffer,
    position: int,
    end: int,
    commit_log_offset: int,
    topics: Callable[[bytes], str | None],
    codes: Callable[[bytes], int | None],
) -> tuple[list[Column], int]: ...
