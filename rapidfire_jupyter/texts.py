"""Texts that a user gives: of whole characters, and usable as a path.

Half of a surrogate pair is no character: UTF-8 has no bytes for it, so no tokenizer, file system
or page takes it. It comes from texts that were cut, or decoded with errors passed on.
"""

import json
import os
from pathlib import Path
from typing import Any


def is_whole(value: Any) -> bool:
    """Whether no text in a value is half a character. Any: JSON values, looked through."""
    try:
        json.dumps(value, ensure_ascii=False, skipkeys=True, default=str).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_text(value: object) -> bool:
    """Whether a value is a text of whole characters."""
    return isinstance(value, str) and is_whole(value)


def is_path(value: object) -> bool:
    """Whether a value can be the path of a file or folder."""
    try:
        return isinstance(value, str | Path) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False
