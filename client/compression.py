"""Compressed bodies: zlib as every client reads it, LZ4 and zstd where their libraries are installed.

The system flag says how a body travels: bit 0 that it is compressed at all, bits 8 to 10 by what. Clients before
4.9.4 set bit 0 alone and mean zlib.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Final, Literal, TypeAlias

from verniermq.client.errors import BodyNotReadable, BodyTooLarge, ClientError, MissingLibrary
from verniermq.kernel import SysFlag
from verniermq.protocol.inflate import MAX_BODY, InflatesTooFar, inflate, read_within

Compression: TypeAlias = Literal["zlib", "lz4", "zstd"]

FLAGS: Final[dict[Compression, int]] = {
    "zlib": SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB,
    "lz4": SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4,
    "zstd": SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD,
}
LEVEL: Final = 5
"""RocketMQ's default for zlib; the others take their own."""
SMALLEST_WINDOW: Final = 8 << 20
"""What zstd's levels up to 19 look back at most."""


def _library(kind: str, module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingLibrary(f"{kind} compression", package) from None


def check_compression(kind: Compression) -> None:
    """
    Raises:
        ClientError: there is no such kind.
        MissingLibrary: its library is not installed.
    """
    if kind not in FLAGS:
        raise ClientError(f"compression={kind!r} is not known; use zlib, lz4 or zstd")
    if kind == "lz4":
        _library("LZ4", "lz4.frame", "lz4")
    elif kind == "zstd":
        _library("zstd", "zstandard", "zstandard")


def compress(body: bytes, kind: Compression = "zlib") -> bytes:
    if kind == "lz4":
        return bytes(_library("LZ4", "lz4.frame", "lz4").compress(body))
    if kind == "zstd":
        return bytes(_library("zstd", "zstandard", "zstandard").ZstdCompressor().compress(body))
    return zlib.compress(body, LEVEL)


def decompress(body: bytes, sys_flag: int, limit: int = MAX_BODY, which: str = "a message") -> bytes:
    """The body as the producer gave it; ``which`` names its message in an error.

    Raises:
        MissingLibrary: the body needs a library that is not installed.
        BodyTooLarge: it has more than ``limit`` bytes; no more than that was ever in memory.
        BodyNotReadable: the bytes are not what the flag says.
    """
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    try:
        if kind == SysFlag.COMPRESSION_LZ4:
            return _inflate_lz4(body, limit)
        if kind == SysFlag.COMPRESSION_ZSTD:
            return _inflate_zstd(body, limit)
        return inflate(body, limit)
    except MissingLibrary:
        raise
    except InflatesTooFar as error:
        raise BodyTooLarge(which, error.stored, error.limit) from None
    except Exception as error:
        raise BodyNotReadable(which, f"{error} ({len(body)} bytes)") from error


def _inflate_lz4(body: bytes, limit: int) -> bytes:
    unpacker = _library("LZ4", "lz4.frame", "lz4").LZ4FrameDecompressor()
    waiting = body

    def read(count: int) -> bytes:
        nonlocal waiting
        given, waiting = waiting, b""
        if unpacker.eof or (unpacker.needs_input and not given):
            return b""
        return bytes(unpacker.decompress(given, count))

    plain = read_within(read, len(body), limit)
    if not unpacker.eof:
        raise ValueError("the LZ4 frame is cut off")
    return plain


def _inflate_zstd(body: bytes, limit: int) -> bytes:
    zstandard = _library("zstd", "zstandard", "zstandard")
    # A frame says how much it wants to look back, and so much is asked of the system before the first byte is made.
    unpacker = zstandard.ZstdDecompressor(max_window_size=max(limit, SMALLEST_WINDOW))
    with unpacker.stream_reader(body) as stream:
        return read_within(stream.read, len(body), limit)
