"""Columns of conversations: their turns as flat arrays, what is wrong with them, clean messages.

Messages have `role` and `content`, or `from` and `value` (ShareGPT). Roles are read without case,
and `ROLES` says what other words for them mean. The content of a turn may be a text, or parts of
which those of type text are its text.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapidfire_jupyter.data.columns import json_array, python_values
from rapidfire_jupyter.data.reading import json_kind
from rapidfire_jupyter.errors import DataError

ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
}
_SIDES = ("user", "assistant", "system", "tool")
_USER, _ASSISTANT, _SYSTEM = 0, 1, 2
_KEYS = (("role", "content"), ("from", "value"))
Mask = Any  # a numpy array of booleans, one per row

PROBLEMS = {
    "empty": "conversations without a turn",
    "role": "turns of an unknown role",
    "reply": "conversations without an assistant's turn",
    "blank": "conversations whose assistant says nothing",
    "start": "conversations that start with the assistant",
    "twice": "two turns of one side in a row",
    "late_system": "a system turn that is not the first",
}


@dataclass(frozen=True)
class Turns:
    """The turns of a column, one conversation after another. Any: numpy arrays.

    Attributes:
        offsets: Where each row's turns start, and the end: rows + 1 numbers.
        roles: Role of each turn, as given.
        texts: Its text; null where its content is null.
        calls: Whether it calls tools.
    """

    offsets: Any
    roles: pa.Array
    texts: pa.Array
    calls: Any

    @property
    def rows(self) -> int:
        """Conversations."""
        return len(self.offsets) - 1


def turns_of(column: pa.ChunkedArray, where: str) -> Turns:
    """The turns of a column of conversations; a null row has none.

    Args:
        where: The data and the column, for messages.

    Raises:
        DataError: A row is no list of messages with roles and contents.
    """
    keys = _plain_keys(column.type)
    if keys is not None:
        offsets = np.zeros(len(column) + 1, dtype=np.int64)
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        np.cumsum(lengths, out=offsets[1:])
        flat = pc.list_flatten(column).combine_chunks()
        flat = flat if isinstance(flat, pa.Array) else pa.concat_arrays(flat.chunks)
        roles, texts = (_strings(flat.field(key)) for key in keys)
        if roles.null_count == 0 and flat.null_count == 0:
            return Turns(offsets, roles, texts, np.zeros(len(roles), dtype=bool))
    return _turns_of_rows(conversations(column, where), where)


def conversations(column: pa.ChunkedArray, where: str) -> list[list[dict[str, Any]] | None]:
    """Each row's messages as Python has them; JSON text is read.

    Raises:
        DataError: A row is no list of objects.
    """
    rows = python_values(column)
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str):
            try:
                row = rows[number - 1] = json.loads(row)
            except ValueError as error:
                raise DataError(
                    f"{where}, row {number}: text that is no list of messages in JSON; write "
                    '[{"role": "user", "content": "..."}, ...]'
                ) from error
        if row is None:
            continue
        if not isinstance(row, list) or not all(isinstance(turn, dict) for turn in row):
            kind = json_kind(
                row
                if not isinstance(row, list)
                else next(turn for turn in row if not isinstance(turn, dict))
            )
            inside = " in the list" if isinstance(row, list) else ""
            raise DataError(
                f"{where}, row {number}: {kind}{inside}; it must be a list of messages, each with "
                "a role and a content"
            )
    return rows


def problems(turns: Turns) -> dict[str, Mask]:
    """Which conversations have which of `PROBLEMS`; those that none has are left out."""
    codes = role_codes(turns.roles)
    lengths = np.diff(turns.offsets)
    row = np.repeat(np.arange(turns.rows), lengths)
    place = np.arange(len(codes)) - turns.offsets[:-1][row]
    before = np.concatenate([[-9], codes[:-1]])
    said = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(turns.texts)), 0)
    said = pc.fill_null(said, False).to_numpy(zero_copy_only=False) | turns.calls

    def rows_with(turn_mask: Any) -> Mask:  # Any: a numpy array of booleans, one per turn
        return np.bincount(row[turn_mask], minlength=turns.rows) > 0

    replied = rows_with(codes == _ASSISTANT)
    first = (place == 0) | ((place == 1) & (before == _SYSTEM))
    found = {
        "empty": lengths == 0,
        "role": rows_with(codes < 0),
        "reply": ~replied & (lengths > 0),
        "blank": replied & ~rows_with((codes == _ASSISTANT) & said),
        "start": rows_with(first & (codes == _ASSISTANT)),
        "twice": rows_with((place > 0) & (codes == before) & (codes <= _ASSISTANT) & (codes >= 0)),
        "late_system": rows_with((codes == _SYSTEM) & (place > 0)),
    }
    return {name: mask for name, mask in found.items() if mask.any()}


def role_codes(roles: pa.Array) -> "np.ndarray[Any, Any]":
    """For each role its number in user, assistant, system, tool; -1 for an unknown one."""
    words = pa.array(list(ROLES))
    sides = np.array([_SIDES.index(side) for side in ROLES.values()] + [-1])
    at = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(roles)), words)
    return np.asarray(sides[pc.fill_null(at, len(ROLES)).to_numpy(zero_copy_only=False)])


def joined_texts(turns: Turns) -> pa.Array:
    """One text per conversation: its roles and texts, parted by control characters."""
    lines = pc.binary_join_element_wise(
        _side_names(turns.roles), pc.fill_null(turns.texts, ""), "\x1f"
    )
    rows = pa.ListArray.from_arrays(pa.array(turns.offsets, pa.int32()), lines)
    return pc.binary_join(rows, "\x1e")


def clean_messages(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """The column as messages with standard roles and texts; the same object if it is that already.

    Text parts are joined to one text, a null content becomes an empty text, and keys that are null
    are left out, so that no template writes None.

    Raises:
        DataError: As `turns_of`; or a role is unknown.
    """
    turns = turns_of(column, where)
    unknown = role_codes(turns.roles) < 0
    if unknown.any():
        at = int(np.flatnonzero(unknown)[0])
        number = int(np.searchsorted(turns.offsets, at, side="right"))
        raise DataError(
            f"{where}, row {number}: the role {turns.roles[at].as_py()!r} is unknown; known are "
            f"{', '.join(ROLES)}"
        )
    names = _side_names(turns.roles)
    keys = _plain_keys(column.type)
    if keys is not None and column.type.value_type.num_fields == 2:
        if keys == _KEYS[0] and names.equals(turns.roles) and turns.texts.null_count == 0:
            return column
        messages = pa.StructArray.from_arrays(
            [names, pc.fill_null(turns.texts, "")], names=["role", "content"]
        )
        offsets = pa.array(turns.offsets, pa.int32())
        return pa.chunked_array([pa.ListArray.from_arrays(offsets, messages)])
    roles = iter(names.to_pylist())
    rows = conversations(column, where)
    return pa.chunked_array(
        [json_array([[_clean(turn, next(roles)) for turn in row or ()] for row in rows])]
    )


def _clean(turn: dict[str, Any], role: str) -> dict[str, Any]:
    key = "content" if "content" in turn else "value"
    rest = {k: v for k, v in turn.items() if k not in ("role", "from", key) and v is not None}
    content = turn.get(key)
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        content = "".join(part["text"] for part in content)
    return {"role": role, "content": "" if content is None else content, **rest}


def _is_text_part(part: object) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text"), str)
    )


def _side_names(roles: pa.Array) -> pa.Array:
    """Standard names of roles; an unknown one stays as it is."""
    codes = role_codes(roles)
    known = pa.array(_SIDES).take(pa.array(codes, mask=codes < 0))
    return pc.coalesce(known, roles)


def _plain_keys(kind: pa.DataType) -> tuple[str, str] | None:
    """The keys of role and content in a list of objects whose contents are texts, or null."""
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return None
    fields = {field.name: field.type for field in kind.value_type}
    if "tool_calls" in fields:
        return None
    for keys in _KEYS:
        if all(key in fields and _is_text(fields[key]) for key in keys):
            return keys
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _strings(array: pa.Array) -> pa.Array:
    return array.cast(pa.string()) if pa.types.is_large_string(array.type) else array


def _turns_of_rows(rows: list[list[dict[str, Any]] | None], where: str) -> Turns:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    roles: list[str] = []
    texts: list[str | None] = []
    calls: list[bool] = []
    for number, row in enumerate(rows, start=1):
        for turn in row or ():
            role, content = turn.get("role", turn.get("from")), turn.get("content")
            content = turn.get("value") if content is None else content
            if not isinstance(role, str):
                raise DataError(
                    f"{where}, row {number}: a message must have a role, got the keys "
                    f'{", ".join(turn)}; write {{"role": "user", "content": "..."}}'
                )
            roles.append(role)
            texts.append(_text_of(content, f"{where}, row {number}"))
            calls.append(bool(turn.get("tool_calls")))
        offsets[number] = len(roles)
    return Turns(
        offsets, pa.array(roles, pa.string()), pa.array(texts, pa.string()), np.array(calls, bool)
    )


def _text_of(content: Any, where: str) -> str | None:  # Any: a JSON value
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(part["text"] for part in content if _is_text_part(part))
    raise DataError(
        f"{where}: a message's content must be a text or a list of parts, got {json_kind(content)}"
    )
