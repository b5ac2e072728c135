"""Compressed bodies: zlib as every client reads it, LZ4 and zstd where their libraries are installed.

The system flag says how a body travels: bit 0 that it is compressed at all, bits 8 to 10 by what. Clients before
4.9.4 set bit 0 alone and mean zlib.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Final, Literal, TypeAlias

from verniermq.client.errors import ClientError, MissingLibrary
from verniermq.kernel import SysFlag

Compression: TypeAlias = Literal["zlib", "lz4", "zstd"]

FLAGS: Final[dict[Compression, int]] = {
    "zlib": SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB,
    "lz4": SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4,
    "zstd": SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD,
}
LEVEL: Final = 5
"""RocketMQ's default for zlib; the others take their own."""


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


def decompress(body: bytes, sys_flag: int) -> bytes:
    """
    Raises:
        MissingLibrary: the body needs a library that is not installed.
        ClientError: the bytes are not what the flag says.
    """
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    try:
        if kind == SysFlag.COMPRESSION_LZ4:
            return bytes(_library("LZ4", "lz4.frame", "lz4").decompress(body))
        if kind == SysFlag.COMPRESSION_ZSTD:
            # Java's streams do not write the size ahead, which the simple call would need.
            unpacker = _library("zstd", "zstandard", "zstandard").ZstdDecompressor().decompressobj()
            return bytes(unpacker.decompress(body))
        return zlib.decompress(body)
    except MissingLibrary:
        raise
    except Exception as error:
        raise ClientError(f"a body of {len(body)} bytes is marked as compressed and is not: {error}") from error
