from verniermq.kernel.commitlog.record import Buffer

SOURCE: int

def whole_record(data: Buffer, position: int, end: int, commit_log_offset: int) -> tuple[int | bytes, ...] | None: ...
