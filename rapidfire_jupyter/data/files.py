"""A file's bytes, checked: decompressed, without a byte order mark, and UTF-8 or refused."""

import codecs
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Protocol

from rapidfire_jupyter.errors import DataError

CHUNK_BYTES = 1 << 20
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True)
class File:
    """One file of the user's.

    Attributes:
        name: How messages call it.
        open: Opens its bytes, decompressed, from the start.
        encoding: How its text is encoded.
    """

    name: str
    open: Callable[[], IO[bytes]]
    encoding: str = "utf-8"


class Bytes(Protocol):
    """What is read from a file: an open file, or one of those below."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; none at the end."""


@contextmanager
def opened(file: File) -> Iterator[Bytes]:
    """A file's bytes as UTF-8, whatever its declared encoding, without a byte order mark.

    Raises:
        DataError: It cannot be opened or decompressed.
    """
    try:
        with file.open() as stream:
            yield _as_utf8(file, stream)
    except (OSError, EOFError, zlib.error) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{file.name} cannot be read: {reason}; check the file") from error


def refuse_bad_bytes(file: File) -> None:
    """Name the first byte of a file that is no UTF-8, if there is one.

    Raises:
        DataError: There is one.
    """
    with opened(file) as stream:
        for _ in numbered_lines(file, stream):
            pass


def _as_utf8(file: File, stream: IO[bytes]) -> Bytes:
    """The stream, wound to after its byte order mark; another declared encoding is converted."""
    if codecs.lookup(file.encoding).name != "utf-8":
        return _Recoded(file, stream)
    start = stream.read(4)
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            raise DataError(
                f"{file.name}, line 1, byte 1: the file is {encoding} (it starts with "
                f"{mark.hex(' ')}), only UTF-8 is read; save it as UTF-8, or give "
                f"encoding={encoding.lower()!r}"
            )
    return _Prefixed(start.removeprefix(codecs.BOM_UTF8), stream)


class _Prefixed:
    """A stream with some bytes put back before it."""

    closed = False

    def __init__(self, start: bytes, stream: IO[bytes]) -> None:
        self._start = start
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        start, self._start = self._start, b""
        if size < 0:
            return start + self._stream.read()
        self._start = start[size:]
        return start[:size] + self._stream.read(max(0, size - len(start)))

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()


class _Recoded:
    """A stream of another encoding, read as UTF-8."""

    closed = False

    def __init__(self, file: File, stream: IO[bytes]) -> None:
        self._file = file
        self._reader = codecs.getreader(file.encoding)(stream)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        try:
            text = self._reader.read() if size < 0 else self._reader.read(size, size)
        except UnicodeError as error:
            raise DataError(
                f"{self._file.name} is not {self._file.encoding}: {error}; give its encoding"
            ) from error
        data = self._rest + text.removeprefix("\ufeff").encode()
        self._rest = b"" if size < 0 else data[size:]
        return data if size < 0 else data[:size]

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._reader.close()


def numbered_lines(file: File, stream: Bytes) -> Iterator[tuple[int, str]]:
    """Each line's number and text, without its line feed. Only line feeds end a line."""
    number, rest = 1, b""
    while chunk := stream.read(CHUNK_BYTES):
        whole, feed, rest = (rest + chunk).rpartition(b"\n")
        if not feed:
            continue
        lines = _decoded(file, whole, number).split("\n")
        yield from enumerate(lines, start=number)
        number += len(lines)
    if rest:
        yield number, _decoded(file, rest, number)


def _decoded(file: File, data: bytes, line: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        begin = data.rfind(b"\n", 0, error.start) + 1
        end = data.find(b"\n", error.start)
        shown = data[
            max(begin, error.start - 12) : error.start + 8 if end < 0 else min(end, error.start + 8)
        ]
        raise DataError(
            f"{file.name}, line {line}, byte {error.start - begin + 1}: 0x{data[error.start]:02x} "
            f"is not UTF-8 (as Latin-1 the text would be {shown.decode('latin-1')!r}); save the "
            "file as UTF-8, or give encoding='latin-1' if that is right"
        ) from error
