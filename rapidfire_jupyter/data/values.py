"""Whether the columns of a layout hold what they must: texts, messages or truth values."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapidfire_jupyter.data.columns import is_json, python_values
from rapidfire_jupyter.data.reading import json_kind
from rapidfire_jupyter.errors import DataError

_TEXT = ("instruction", "input", "system", "output", "text")
_EITHER = ("prompt", "completion", "chosen", "rejected")
_CHAT = ("messages", "conversations")
_FIX = "write it as a string"
_TRUE, _FALSE = ("true", "1"), ("false", "0")


def refuse_columns(
    table: pa.Table, used: Mapping[str, tuple[str, ...]], what: str
) -> tuple[bool, tuple[str, ...]]:
    """Refuse columns whose values are of a kind that their part cannot be.

    Args:
        used: For each part of a layout the columns that hold it.

    Returns:
        Whether the parts are messages; and notes on what will be converted.

    Raises:
        DataError: A value is of a wrong kind; the message names its column and row.
    """
    notes: list[str] = []
    chats: dict[str, bool] = {}
    for part, names in used.items():
        for name in names:
            column, where = table.column(name), f"{what}, column {name!r}"
            if pa.types.is_null(column.type):
                continue
            if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
                raise DataError(
                    f"{where}: it holds bytes, not text; decode them and write it as text"
                )
            if part == "references":
                _refuse_references(column, where)
            elif part in (*_EITHER, *_CHAT) and is_chat(column):
                chats[part] = True
                if is_text(column.type):
                    notes.append(f"the text in the column {name!r} is read as messages in JSON")
            elif part in _CHAT:
                raise DataError(
                    f"{where}: it must hold lists of messages, each with a role and a content; it "
                    f"holds {column.type}"
                )
            elif part in (*_TEXT, *_EITHER):
                chats[part] = False
                notes += _text_notes(column, name, where)
    conversational = any(chats.values())
    if conversational and not all(chats.values()) and "chosen" not in chats:
        texts = ", ".join(part for part, chat in chats.items() if not chat)
        raise DataError(
            f"{what}: {texts} is text, but "
            f"{', '.join(p for p, chat in chats.items() if chat)} is messages; write both alike"
        )
    return conversational, tuple(notes)


def is_chat(column: pa.ChunkedArray) -> bool:
    """Whether a column's values are lists of messages, or JSON text of such lists."""
    kind = column.type
    if is_text(kind):
        filled = column.drop_null()
        if len(filled) == 0:
            return False
        pattern = r'^\s*\[\s*(\]|\{\s*"(role|from|content|value)")'
        return bool(pc.all(pc.match_substring_regex(filled, pattern)).as_py())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_type
        if is_json(inner):
            return True
        if pa.types.is_struct(inner):
            return bool({field.name for field in inner} & {"role", "from"})
        return bool(pa.types.is_null(inner))
    return is_json(kind) and all(
        isinstance(v, list) for v in python_values(column) if v is not None
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def text_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as text: numbers are written as Python writes them, null stays null."""
    if is_text(column.type):
        return column if pa.types.is_string(column.type) else column.cast(pa.string())
    values = [
        None if v is None else v if isinstance(v, str) else str(v) for v in python_values(column)
    ]
    return pa.chunked_array([pa.array(values, pa.string())])


def is_blank(texts: pa.ChunkedArray) -> "np.ndarray[Any, Any]":
    """Which texts have nothing but blanks in them, or are null."""
    blank = pc.or_(pc.utf8_is_space(texts), pc.equal(pc.binary_length(texts), 0))
    return np.asarray(pc.fill_null(blank, True).to_numpy(), dtype=bool)


def truth_values(column: pa.ChunkedArray) -> "np.ndarray[Any, Any] | None":
    """A column as truth values; null counts as true. None if it holds anything else.

    Text such as "true" and "0" counts, since a CSV file has nothing else.
    """
    if pa.types.is_boolean(column.type):
        return np.asarray(pc.fill_null(column, True).to_numpy(), dtype=bool)
    if is_text(column.type):
        lower = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        known = pc.is_in(lower, pa.array([*_TRUE, *_FALSE]), skip_nulls=True)
        if len(column) and pc.all(pc.or_(known, column.is_null())).as_py():
            return ~np.asarray(pc.is_in(lower, pa.array(_FALSE)).to_numpy(), dtype=bool)
    return None


def _text_notes(column: pa.ChunkedArray, name: str, where: str) -> list[str]:
    """A note on numbers that will be written as text; anything else that is no text is refused."""
    kind = column.type
    if is_text(kind):
        return []
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_json(kind)):
        number = pc.index(column.is_valid(), True).as_py() + 1
        value = column[number - 1].as_py()
        raise DataError(f"{where}, row {number}: it must be text, got {json_kind(value)}; {_FIX}")
    numbers = 0
    for number, value in enumerate(python_values(column), start=1):
        if value is None or isinstance(value, str):
            continue
        wrong = isinstance(value, bool) or not isinstance(value, int | float)
        if wrong or not math.isfinite(value):
            raise DataError(
                f"{where}, row {number}: it must be text, got {json_kind(value)}; {_FIX}"
            )
        numbers += 1
    if not numbers:
        return []
    if numbers == 1:
        return [f"1 number in the column {name!r} is taken as text"]
    return [f"{numbers} numbers in the column {name!r} are taken as text"]


def _refuse_references(column: pa.ChunkedArray, where: str) -> None:
    kind = column.type
    texts = is_text(kind) or (pa.types.is_list(kind) and is_text(kind.value_type))
    if not texts:
        raise DataError(f"{where}: it must hold a text or a list of texts, it holds {kind}")
