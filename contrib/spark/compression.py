"""Bodies that a producer compressed, made readable again.

The system flag says whether (0x1) and how (0x700): zlib 0x300, or 0 from old clients, LZ4 frames 0x100, zstd 0x200.
Few messages are compressed, so these are taken one by one.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from verniermq.kernel import SysFlag, VernierMQError


class BodyNotReadable(VernierMQError):
    def __init__(self, method: str, why: object) -> None:
        super().__init__(
            f"a body that claims to be compressed with {method} cannot be read: {why}; "
            "set the option decompress=false to get bodies as they are stored"
        )


def decompress_bodies(bodies: pa.Array, sys_flags: npt.NDArray[Any]) -> pa.Array:
    """The bodies with the compressed ones made plain.

    Raises:
        BodyNotReadable: one is not what its flag says.
    """
    compressed = np.flatnonzero(sys_flags & SysFlag.COMPRESSED)
    if not len(compressed):
        return bodies
    plain = bodies.to_pylist()
    for row in compressed.tolist():
        plain[row] = decompress(plain[row], int(sys_flags[row]))
    return pa.array(plain, pa.binary())


def decompress(body: bytes, sys_flag: int) -> bytes:
    """
    Raises:
        BodyNotReadable: the body is not what the flag says.
    """
    method = {SysFlag.COMPRESSION_LZ4: "lz4", SysFlag.COMPRESSION_ZSTD: "zstd"}.get(
        sys_flag & SysFlag.COMPRESSION_MASK, "zlib"
    )
    try:
        if method == "zlib":
            return zlib.decompress(body)
        with pa.CompressedInputStream(pa.BufferReader(body), method) as stream:
            plain: bytes = stream.read()
            return plain
    except (zlib.error, OSError, ValueError) as error:
        raise BodyNotReadable(method, error) from error
