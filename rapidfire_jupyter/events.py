"""The event log: everything that happened in an experiment, append-only, one JSON line each.

A line carries its sequence number and a CRC. Only a torn last line is ever cut when a log is
opened; damage anywhere else is an error that names the line. Floats that JSON cannot hold (NaN,
infinities) are written as the strings "NaN", "Infinity", "-Infinity"; in a logged `row`, whose
values are numbers, they are read back as floats.
"""

import json
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapidfire_jupyter import storage
from rapidfire_jupyter.errors import ExperimentError

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Event:
    """One thing that happened. `run` is None for what concerns the whole experiment.

    `time` is Unix time in seconds. `data` holds JSON values (and non-finite floats) only.
    """

    seq: int
    time: float
    kind: str
    run: int | None
    data: Mapping[str, Any]  # Any: JSON values, by kind


class EventLog:
    """Owns `events.jsonl`: appends, reads, and tells listeners.

    Thread-safe. A listener is called in the thread that appends, in order, holding the log's lock:
    it must be quick and must not append.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        """Open or create a log.

        Raises:
            ExperimentError: A line other than a torn last one is damaged.
        """
        self.path = path
        self.events: list[Event] = []
        self._lock = threading.RLock()
        self._listeners: list[Callable[[Event], None]] = []
        self._size_bytes = 0
        if path.exists():
            self.events, self._size_bytes = read(path)
        self._read_only = read_only
        self._fd = -1
        if not read_only:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._fd, self._size_bytes)
            os.lseek(self._fd, 0, os.SEEK_END)

    def append(
        self, kind: str, run: int | None = None, /, *, sync: bool = False, **data: Any
    ) -> Event:
        """Append an event and tell the listeners. Any: JSON values.

        Args:
            sync: Wait until the disk has it (checkpoints and ops do).

        Raises:
            ExperimentError: The log is open read-only.
            OSError: The disk refused the write; the log is as it was before.
        """
        if self._read_only:
            raise ExperimentError(
                f"{self.path.parent} is open read-only in this kernel: another kernel owns it"
            )
        with self._lock:
            event = Event(len(self.events), time.time(), kind, run, data)
            line = encode_line(event)
            try:
                storage.append(self._fd, self.path, line)
                if sync:
                    storage.sync(self._fd, self.path)
            except OSError:
                os.ftruncate(self._fd, self._size_bytes)
                os.lseek(self._fd, 0, os.SEEK_END)
                raise
            self._size_bytes += len(line)
            self.events.append(event)
            for listener in self._listeners:
                listener(event)
        return event

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener(event)` for each event from now on; returns the function that ends it."""
        with self._lock:
            self._listeners.append(listener)

        def unsubscribe() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return unsubscribe

    def since(self, seq: int) -> list[Event]:
        """Events from sequence number `seq` on."""
        with self._lock:
            return self.events[seq:]

    def sync(self) -> None:
        """Wait until the disk has every event appended so far."""
        if self._fd >= 0:
            storage.sync(self._fd, self.path)

    def is_on_disk(self) -> bool:
        """Whether the file that was opened is still where it was; also if it was closed."""
        try:
            there = self.path.stat()
        except OSError:
            return self._fd < 0 and not self.events  # it was never written
        return self._fd < 0 or os.fstat(self._fd).st_ino == there.st_ino

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the log was opened read-only."""
        return self._read_only

    def close(self) -> None:
        """Flush to disk and close the file; events stay readable."""
        with self._lock:
            if self._fd >= 0:
                storage.sync(self._fd, self.path)
                os.close(self._fd)
                self._fd = -1
            self._read_only = True


def encode_line(event: Event) -> bytes:
    """One line of the log, with its CRC last."""
    body = json.dumps(
        {
            "seq": event.seq,
            "time": event.time,
            "kind": event.kind,
            "run": event.run,
            "data": _finite(event.data),
        },
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    crc = zlib.crc32(body.encode("utf-8", "surrogatepass"))
    return f'{body[:-1]},"crc":{crc}}}\n'.encode("utf-8", "surrogatepass")


def decode_line(line: bytes) -> Event:
    """Read a line that `encode_line` wrote.

    Raises:
        ValueError: It is torn, changed, or no such line.
    """
    text = line.decode("utf-8", "surrogatepass")
    body, mark, crc = text.rstrip("\n").rpartition(',"crc":')
    if not mark or zlib.crc32((body + "}").encode("utf-8", "surrogatepass")) != int(
        crc.rstrip("}")
    ):
        raise ValueError("checksum does not match")
    raw = json.loads(body + "}")
    data = raw["data"]
    if "row" in data:
        data["row"] = _restore(data["row"])
    return Event(raw["seq"], raw["time"], raw["kind"], raw["run"], data)


def read(path: Path) -> tuple[list[Event], int]:
    """Read a log: its events, and the size in bytes of its good part.

    Raises:
        ExperimentError: A line before the last is damaged or out of sequence.
    """
    events: list[Event] = []
    good_bytes = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            event = decode_line(line)
            if event.seq != len(events) or not line.endswith(b"\n"):
                raise ValueError(f"expected sequence number {len(events)}, found {event.seq}")
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise ExperimentError(
                f"{path.name} line {number} is damaged ({error}); restore the file from a copy, or "
                "start a new experiment under another name"
            ) from error
        events.append(event)
        good_bytes += len(line)
    return events, good_bytes


def _finite(value: Any) -> Any:  # Any: JSON values
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _restore(row: dict[str, Any]) -> dict[str, Any]:  # Any: JSON values
    return {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in row.items()}
