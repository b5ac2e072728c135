from verniermq.client.record import MessageFields as MessageFields
from verniermq.client.record import decode_plain as decode_plain

SOURCE: int

class FilledTemplate:
    def __init__(self, *parts: bytes) -> None: ...
    def frame(self, born_ms: int, flag: int, properties: str, opaque: int, body: bytes) -> bytes: ...
