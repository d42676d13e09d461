"""Durable file operations: everything an experiment must not lose goes to disk through here.

Each operation announces itself to `watcher` before and after it happens. Nothing in the product
sets it; the crash tests do, to kill the process at each point and to know what was not yet fsynced.
"""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# How a disk says that it is full or failing.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})

Watcher = Callable[[str, Path], None]


def _nobody(point: str, path: Path) -> None:
    """Watch nothing."""


watcher: Watcher = _nobody


def append(fd: int, path: Path, data: bytes) -> None:
    """Write all of `data` at the end of an open file."""
    watcher("append:before", path)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    watcher("append:after", path)


def sync(fd: int, path: Path) -> None:
    """Wait until the disk has an open file."""
    watcher("fsync:before", path)
    os.fsync(fd)
    watcher("fsync:after", path)


def sync_path(path: Path) -> None:
    """Wait until the disk has a file, or the entries of a folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        sync(fd, path)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder; it is on disk when this returns."""
    watcher("rename:before", target)
    os.rename(source, target)
    watcher("rename:after", target)
    sync_path(target.parent)
    if source.parent != target.parent:
        sync_path(source.parent)


def write_json(path: Path, value: Any) -> None:  # Any: a JSON value
    """Put a JSON file in place, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Put a text file in place, whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    watcher("write:before", temporary)
    temporary.write_text(text, encoding="utf-8")
    watcher("write:after", temporary)
    sync_path(temporary)
    rename(temporary, path)


def size_bytes(folder: Path) -> int:
    """Bytes of all files in a folder; what vanishes meanwhile does not count."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob, it passes over a folder that is gone
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return (
            hashlib.file_digest(file, "sha256").hexdigest() if _HAS_FILE_DIGEST else _digest(file)
        )


_HAS_FILE_DIGEST = hasattr(hashlib, "file_digest")


def _digest(file: Any) -> str:  # Any: a binary file; Python 3.10 has no hashlib.file_digest
    total = hashlib.sha256()
    while block := file.read(1 << 20):
        total.update(block)
    return total.hexdigest()
