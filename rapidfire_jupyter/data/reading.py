"""From the bytes of a JSON or text file to rows, with the line of each; what is broken is named.

JSON Lines, a list of objects and objects one after another are told apart by what the file holds,
not by its ending. Nothing is guessed: bytes that are no UTF-8 are refused, not replaced.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter.data.files import CHUNK_BYTES, File, numbered_lines, opened
from rapidfire_jupyter.data.kinds import NAMES
from rapidfire_jupyter.errors import DataError

BLOCK_ROWS = 10_000
_CONVERSATION_KEYS = ("role", "from", "content", "value")


@dataclass(frozen=True)
class Block:
    """Some rows that follow each other in a file. Any: values as JSON gives them.

    Attributes:
        places: Where each row is, for messages: "line 3", or "row 3" of a list.
    """

    name: str
    rows: list[dict[str, Any]]
    places: list[int]
    place: str = "line"

    def where(self, index: int) -> str:
        """The place of a row of this block, for messages."""
        return f"{self.name}, {self.place} {self.places[index]}"


def json_blocks(file: File, field: str | None = None) -> Iterator[Block]:
    """Rows of a JSON file: one object per line, a list of objects, or objects in a row.

    Args:
        field: Key under which a file that is one object keeps its rows.

    Raises:
        DataError: The file is no valid JSON or no UTF-8, or holds something else than objects.
    """
    with opened(file) as stream:
        lines = numbered_lines(file, stream)
        first = next(lines, None)
        while first is not None and not first[1].strip():
            first = next(lines, None)
        if first is None:
            return
        if field is None and _is_one_row(first[1], file.name):
            yield from _rows_by_line(file, first, lines)
            return
        start = first[0]
        text = "\n".join((first[1], *(line for _, line in lines)))
    yield from _rows_of_document(file, text, start, field)


def text_blocks(file: File) -> Iterator[Block]:
    """Lines of a text file, each a row with the column `text`; blank lines are no rows.

    Raises:
        DataError: The file is no UTF-8.
    """
    with opened(file) as stream:
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        for number, line in numbered_lines(file, stream):
            if line.strip():
                rows.append({"text": line.removesuffix("\r")})
                places.append(number)
            if len(rows) == BLOCK_ROWS:
                yield Block(file.name, rows, places)
                rows, places = [], []
        if rows:
            yield Block(file.name, rows, places)


def _is_one_row(line: str, name: str) -> bool:
    """Whether a file's first line is a row by itself, so that its other lines are too."""
    text = line.strip()
    if text.startswith("["):
        return False
    try:
        json.loads(text)
    except ValueError:
        # A pretty-printed object opens on its first line; anything else is a bad row.
        return text != "{" and not name.removesuffix(".gz").endswith(".json")
    except RecursionError:
        return True
    return True


def _rows_by_line(
    file: File, first: tuple[int, str], lines: Iterator[tuple[int, str]]
) -> Iterator[Block]:
    texts, places = [first[1]], [first[0]]
    size, blocks = 0, 0
    for number, line in lines:
        if line and not line.isspace():
            texts.append(line)
            places.append(number)
            size += len(line)
        if size > CHUNK_BYTES:
            yield _parsed_block(file, texts, places)
            texts, places, size = [], [], 0
            blocks += 1
    if texts:
        block = _parsed_block(file, texts, places)
        if blocks == 0 and len(block.rows) == 1:
            _refuse_wrapped(file.name, block.rows[0])
        yield block


def _parsed_block(file: File, texts: list[str], places: list[int]) -> Block:
    try:  # all lines in one call; a comma and a line feed can stand in no valid value of one line
        rows = json.loads("[" + ",\n".join(texts) + "]")
    except (ValueError, RecursionError):
        rows = []
    if len(rows) != len(texts):
        rows = [_parsed(file, t, p, p == places[-1]) for t, p in zip(texts, places, strict=True)]
    for row, place in zip(rows, places, strict=True):
        if not isinstance(row, dict):
            _refuse_row(f"{file.name}, line {place}", row)
    return Block(file.name, rows, places)


def _parsed(file: File, text: str, line: int, last: bool) -> Any:  # Any: a JSON value
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        hint = ""
        if text.lstrip().startswith(("{'", "{ '")):
            hint = " (JSON needs double quotes, this has single ones)"
        elif (last and error.pos >= len(text.rstrip())) or error.msg.startswith("Unterminated"):
            hint = " (the line is cut off)"
        raise DataError(
            f"{file.name}, line {line}, column {error.colno}: no valid JSON{hint}: {error.msg}; "
            "each line must be one JSON object"
        ) from error
    except RecursionError as error:
        raise DataError(f"{file.name}, line {line}: nested too deeply; flatten it") from error


def _rows_of_document(file: File, text: str, line: int, field: str | None) -> Iterator[Block]:
    """Rows of a file that is read as a whole; `line` is the number of the text's first line."""
    rows: list[dict[str, Any]] = []
    places: list[int] = []
    blocks = 0
    for place, column, value in _values(file, text, line, field is None):
        where = f"{file.name}, line {place}, column {column}"
        if field is not None:
            yield from _field_rows(file, value, field, where)
            return
        if not isinstance(value, dict):
            _refuse_row(where, value)
        rows.append(value)
        places.append(place)
        if len(rows) == BLOCK_ROWS:
            yield Block(file.name, rows, places)
            rows, places = [], []
            blocks += 1
    if blocks == 0 and len(rows) == 1:
        _refuse_wrapped(file.name, rows[0])
    if rows:
        yield Block(file.name, rows, places)


def _values(
    file: File, text: str, first_line: int, may_be_list: bool
) -> Iterator[tuple[int, int, Any]]:
    """Line, column and value of each item of a list, or of each value one after another."""
    decode = json.JSONDecoder().raw_decode
    pos = _skip(text, 0)
    listed = may_be_list and text.startswith("[", pos)
    if listed:
        pos = _skip(text, pos + 1)
    line, counted = first_line, 0
    while pos < len(text) and not (listed and text[pos] == "]"):
        line += text.count("\n", counted, pos)
        counted = pos
        column = pos - text.rfind("\n", 0, pos)
        try:
            value, pos = decode(text, pos)
        except json.JSONDecodeError as error:
            raise DataError(_at(file, text, error.pos, first_line, error.msg)) from error
        except RecursionError as error:
            raise DataError(f"{file.name}, line {line}: nested too deeply; flatten it") from error
        yield line, column, value
        pos = _skip(text, pos)
        if listed and text.startswith(",", pos):
            pos = _skip(text, pos + 1)
        elif listed and not text.startswith("]", pos):
            what = "does not end" if pos == len(text) else "misses a comma"
            raise DataError(_at(file, text, pos, first_line, f"the list of rows {what}"))
    if listed:
        if pos == len(text):
            raise DataError(_at(file, text, pos, first_line, "the list of rows does not end"))
        pos = _skip(text, pos + 1)
        if pos < len(text):
            raise DataError(_at(file, text, pos, first_line, "text after the end of the list"))


def _skip(text: str, pos: int) -> int:
    """The place of the next letter that is no blank of JSON's."""
    while pos < len(text) and text[pos] in " \t\r\n":
        pos += 1
    return pos


def _at(file: File, text: str, pos: int, first_line: int, what: str) -> str:
    column = pos - (text.rfind("\n", 0, pos) + 1) + 1
    place = f"{file.name}, line {first_line + text.count(chr(10), 0, pos)}, column {column}"
    return f"{place}: no valid JSON: {what}; a file is a list of objects or one object per line"


def _field_rows(file: File, value: Any, field: str, where: str) -> Iterator[Block]:
    if not isinstance(value, dict) or field not in value:
        keys = ", ".join(map(repr, value)) if isinstance(value, dict) else "no keys"
        raise DataError(f"{where}: there is no field {field!r}, it has {keys}; give one of them")
    rows = value[field]
    if not isinstance(rows, list):
        raise DataError(f"{where}: field {field!r} is {json_kind(rows)}, not a list of rows")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            _refuse_row(f"{file.name}, field {field!r}, row {number}", row)
    yield Block(file.name, rows, list(range(1, len(rows) + 1)), "row")


def _refuse_row(where: str, row: Any) -> None:
    raise DataError(
        f'{where}: a row must be an object such as {{"text": "..."}}, got {json_kind(row)}'
    )


def _refuse_wrapped(name: str, row: dict[str, Any]) -> None:
    """Refuse a lone object that holds the rows under a key."""
    if any(key.strip().casefold() in NAMES for key in row):
        return
    for key, value in row.items():
        if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            if any(k in value[0] for k in _CONVERSATION_KEYS):
                continue
            raise DataError(
                f"{name} is one object with {len(value)} rows under {key!r}, not a list of rows; "
                f"give field={key!r}"
            )


def json_kind(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"a boolean ({str(value).lower()})"
    if isinstance(value, int | float):
        return f"a number ({value})"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"
