"""Bodies that a producer compressed, made readable again.

The system flag says whether (0x1) and how (0x700): zlib 0x300, or 0 from old clients, LZ4 frames 0x100, zstd 0x200.
Few messages are compressed, so these are taken one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from verniermq.kernel import SysFlag, VernierMQError
from verniermq.protocol.inflate import MAX_BODY, InflatesTooFar, inflate, read_within


class BodyNotInflated(VernierMQError):
    def __init__(self, method: str, why: object, which: str = "a message") -> None:
        super().__init__(
            f"the body of {which} claims to be compressed with {method} and cannot be read: {why}; "
            "set the option decompress=false to get bodies as they are stored"
        )


def decompress_bodies(
    bodies: pa.Array, sys_flags: npt.NDArray[Any], places: npt.NDArray[Any], limit: int = MAX_BODY
) -> pa.Array:
    """The bodies with the compressed ones made plain; ``places`` are their commit-log offsets.

    Raises:
        BodyNotInflated: one is not what its flag says, or larger than ``limit``.
    """
    compressed = np.flatnonzero(sys_flags & SysFlag.COMPRESSED)
    if not len(compressed):
        return bodies
    plain = bodies.to_pylist()
    for row in compressed.tolist():
        which = f"the message at commit-log offset {places[row]}"
        plain[row] = decompress(plain[row], int(sys_flags[row]), limit, which)
    return pa.array(plain, pa.binary())


def decompress(body: bytes, sys_flag: int, limit: int = MAX_BODY, which: str = "a message") -> bytes:
    """
    Raises:
        BodyNotInflated: the body is not what the flag says, or has more than ``limit`` bytes.
    """
    method = {SysFlag.COMPRESSION_LZ4: "lz4", SysFlag.COMPRESSION_ZSTD: "zstd"}.get(
        sys_flag & SysFlag.COMPRESSION_MASK, "zlib"
    )
    try:
        if method == "zlib":
            return inflate(body, limit)
        with pa.CompressedInputStream(pa.BufferReader(body), method) as stream:
            return read_within(stream.read, len(body), limit)
    except InflatesTooFar as error:
        raise BodyNotInflated(method, f"{error} by the option maxBodySize", which) from None
    except (OSError, ValueError) as error:
        raise BodyNotInflated(method, error, which) from error
