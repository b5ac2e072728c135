"""From received bytes to commands: ``length i32 | header word i32 | header | body``, again and again.

A chunk that the socket delivers may hold many frames, or a part of one. Whole frames are cut straight out of the
chunk; only the unfinished one at its end is kept, and put before the next chunk as soon as that completes it. No I/O
happens here.
"""

from __future__ import annotations

import struct
from typing import Final, final

from verniermq.kernel.errors import ProtocolError
from verniermq.kernel.remoting.binary_header import decode_binary_header
from verniermq.kernel.remoting.command import Command
from verniermq.kernel.remoting.json_header import decode_json_header
from verniermq.kernel.remoting.limits import RemotingLimits

_unpack_length = struct.Struct(">i").unpack_from
_unpack_words = struct.Struct(">iI").unpack_from

_JSON: Final = 0
_BINARY: Final = 1
_TLS_HANDSHAKE: Final = 0x1603
_SMALLEST_LENGTH: Final = 4


@final
class FrameDecoder:
    """Turns one peer's bytes into commands.

    Attributes:
        error: Why the bytes after the last command are no frame. Nothing after them can be trusted, so nothing is read.
    """

    def __init__(self, limits: RemotingLimits | None = None) -> None:
        self.limits = limits or RemotingLimits()
        self.error: ProtocolError | None = None
        self._longest = self.limits.max_frame_size - 4
        self._longest_header = min(self.limits.max_header_size, 0xFFFFFF)  # its length has 24 bits
        self._unfinished = bytearray()
        self._needed = 0
        """How many bytes the unfinished frame must have before it is worth another look; 0 when there is none."""

    def feed(self, chunk: bytes) -> list[Command]:
        """The commands that this chunk completes, in order; then look at ``error``."""
        commands: list[Command] = []
        if self.error is not None:
            return commands
        if self._needed:
            whole = self.join(chunk)
            if whole is None:
                self._unfinished += chunk
                return commands
            chunk = whole
        start, end = 0, len(chunk)
        longest = self._longest
        longest_header = self._longest_header
        try:
            while end - start >= 8:
                length, word = _unpack_words(chunk, start)
                if not _SMALLEST_LENGTH <= length <= longest:
                    raise self._bad_length(length)
                header_start = start + 8
                header_size = word & 0xFFFFFF
                header_end = header_start + header_size
                next_start = start + 4 + length
                form = word >> 24
                if form > _BINARY or header_size > longest_header or header_end > next_start:
                    raise self._bad_word(length, word)
                if next_start > end:
                    break
                raw = chunk[header_start:header_end]
                code, opaque, flag, ext, remark, language, version = (
                    decode_binary_header(raw) if form else decode_json_header(raw)
                )
                body = chunk[header_end:next_start]
                commands.append(Command(code, opaque, flag, ext, remark, language, version, body, form == _BINARY))
                start = next_start
            if start < end:
                self._keep(chunk[start:])
        except ProtocolError as error:
            self.error = error
        return commands

    def join(self, chunk: bytes) -> bytes | None:
        """The unfinished frame with the chunk behind it, to be fed instead of it; ``None`` if that is not all of it."""
        if not self._needed:
            return chunk
        if len(self._unfinished) + len(chunk) < self._needed or self.error is not None:
            return None
        whole = b"".join((self._unfinished, chunk))
        self._unfinished.clear()
        self._needed = 0
        return whole

    def _keep(self, rest: bytes) -> None:
        self._unfinished += rest
        if len(rest) < 4:
            self._needed = 4
            return
        (length,) = _unpack_length(rest)
        if not _SMALLEST_LENGTH <= length <= self._longest:
            raise self._bad_length(length)
        # The second word is looked at as soon as it is there: a bad one need not wait for its body.
        self._needed = 8 if len(rest) < 8 else 4 + length

    def _bad_length(self, length: int) -> ProtocolError:
        if length < _SMALLEST_LENGTH:
            return ProtocolError(f"frame length is {length}, expected {_SMALLEST_LENGTH} or more")
        if length >> 16 == _TLS_HANDSHAKE:
            return ProtocolError('the peer speaks TLS, which is off here; [tls] mode = "permissive" turns it on')
        return ProtocolError(
            f"frame of {length + 4} bytes exceeds max_frame_size of {self.limits.max_frame_size} bytes"
        )

    def _bad_word(self, length: int, word: int) -> ProtocolError:
        kind, header_size = word >> 24, word & 0xFFFFFF
        if kind > _BINARY:
            return ProtocolError(f"header form is {kind}, expected {_JSON} (JSON) or {_BINARY} (binary)")
        if header_size > length - 4:
            return ProtocolError(f"header of {header_size} bytes does not fit into a frame of {length + 4} bytes")
        return ProtocolError(
            f"header of {header_size} bytes exceeds max_header_size of {self.limits.max_header_size} bytes"
        )
