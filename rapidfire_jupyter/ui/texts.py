"""Texts on their way out: what no page can read is replaced, as it would cost the message."""

import json
from collections.abc import Mapping
from typing import Any

MOST = 300  # characters of an error that nobody foresaw


def sendable(text: str) -> str:
    """A text without lone surrogates, which UTF-8 has no bytes for."""
    return text.encode("utf-8", "replace").decode("utf-8")


def cleaned(value: Any) -> Any:  # Any: JSON values
    """A message whose texts can all be sent; the same one if they can as they are."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError:
        return _cleaned(value)
    return value


def _cleaned(value: Any) -> Any:  # Any: JSON values
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(one) for one in value]
    return value


def in_a_line(error: Exception) -> str:
    """An error that nobody foresaw, in one line."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:MOST] if first else type(error).__name__
