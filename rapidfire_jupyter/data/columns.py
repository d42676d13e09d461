"""From rows, as JSON gives them, to an Arrow table that keeps each value as it was.

A column of strings is text and stays so, whatever its strings look like. A column whose values are
of several types, or whose objects have different keys, is kept as JSON (`datasets.Json`), so that
no string becomes a number, no truth value 0 or 1, and no key appears that a row did not have. Whole
numbers and fractions are one type, numbers. (What reads that JSON may miss the last of a fraction's
17 digits, and has null for NaN and infinity.) Whole numbers over 64 bits become text.
"""

import json
import numbers
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rapidfire_jupyter.data.reading import BLOCK_ROWS, Block
from rapidfire_jupyter.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

_LIMIT = 2**63
_MIXED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def table_of(blocks: Iterable[Block]) -> pa.Table:
    """Put blocks of rows under each other; a key that a row lacks is null.

    Raises:
        DataError: A string is no Unicode text, or values of one column are of types that cannot
            stand together; the message names file, line and column.
        TypeError: A value is of no type that JSON or Arrow knows.
    """
    parts: dict[str, list[Any]] = {}  # Any: Arrow arrays, or the length of a gap
    big: set[str] = set()
    total = 0
    for block in blocks:
        for name in dict.fromkeys(key for row in block.rows for key in row):
            values = [row.get(name) for row in block.rows]
            column = parts.setdefault(name, [total] if total else [])
            before = column[-1] if column else None
            array = None if isinstance(before, int) else _as_before(values, before)
            column.append(_array(values, name, block, big) if array is None else array)
        total += len(block.rows)
        for column in parts.values():
            missing = total - sum(p if isinstance(p, int) else len(p) for p in column)
            if missing:
                column.append(missing)
    return pa.table({name: _joined(column, name in big) for name, column in parts.items()})


def rows_table(rows: list[dict[str, Any]], name: str) -> pa.Table:
    """The same for a list of rows; messages count its rows from 1.

    Raises:
        DataError: As `table_of`; or a column's name is no string.
        TypeError: As `table_of`.
    """
    size = BLOCK_ROWS
    starts = range(0, len(rows), size)
    for number, row in enumerate(rows, start=1):
        for key in row:
            if not isinstance(key, str):
                raise DataError(f"{name}, row {number}: column names must be text, got {key!r}")
    return table_of(
        Block(name, rows[s : s + size], list(range(s + 1, s + 1 + len(rows[s : s + size]))), "row")
        for s in starts
    )


def plain_columns(table: pa.Table) -> pa.Table:
    """A table without index columns of pandas, and with dictionaries as what they stand for."""
    metadata = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    index = {name for name in metadata.get("index_columns", ()) if isinstance(name, str)}
    for number, field in reversed(list(enumerate(table.schema))):
        if field.name in index or field.name.startswith("__index_level_"):
            table = table.remove_column(number)
        elif pa.types.is_dictionary(field.type):
            plain = table.column(number).cast(field.type.value_type)
            table = table.set_column(number, field.name, plain)
    return table.replace_schema_metadata(None)


def dataset_of(table: pa.Table, features: Mapping[str, Any] | None = None) -> "Dataset":
    """The data set over a table.

    It is named at random: the name that datasets would make digests a copy of all rows, and is for
    files that cache what was computed, which data in memory have none of.

    Args:
        features: What columns stand for where Arrow's types do not tell it, such as images. Any:
            features of datasets.
    """
    from datasets import Dataset, Features
    from datasets.fingerprint import generate_random_fingerprint

    known = Features.from_arrow_schema(table.schema)
    for name, feature in (features or {}).items():
        if name in known:
            known[name] = feature
    table = table.replace_schema_metadata(known.arrow_schema.metadata)
    return Dataset(table, fingerprint=generate_random_fingerprint())


def by_datasets(rows: list[dict[str, Any]], what: str) -> "Dataset":
    """The data set of rows with images and the like, which datasets knows how to store.

    Raises:
        DataError: It does not.
    """
    from datasets import Dataset

    try:
        return Dataset.from_list(rows)
    except (*_MIXED, TypeError) as error:
        raise DataError(f"{what}: {error}; give the values of a column one type") from error


def json_array(values: list[Any]) -> pa.Array:
    """Values as JSON: lists of objects keep their list, anything else is one JSON value each."""
    present = [v for v in values if v is not None]
    if present and all(
        isinstance(v, list) and all(isinstance(item, dict) for item in v) for v in present
    ):
        lengths = [None if v is None else len(v) for v in values]
        inner = _json([item for v in present for item in v])
        offsets: list[int | None] = []
        total = 0
        for length in lengths:
            offsets.append(None if length is None else total)
            total += length or 0
        return pa.ListArray.from_arrays(pa.array([*offsets, total], pa.int32()), inner)
    return _json(values)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """A column's values as Python has them, JSON decoded. Any: whatever the column holds."""
    kind = column.type
    if is_json(kind):
        return [None if v is None else json.loads(v) for v in column.to_pylist()]
    if pa.types.is_list(kind) and is_json(kind.value_type):
        return [None if v is None else [json.loads(x) for x in v] for v in column.to_pylist()]
    return list(column.to_pylist())


def is_json(kind: pa.DataType) -> bool:
    """Whether a column of this type is kept as JSON."""
    return isinstance(kind, pa.JsonType)


def _as_before(values: list[Any], before: pa.Array | None) -> pa.Array | None:
    """Lists of objects of texts as the block before had them; None if they are anything else.

    Arrow takes long to infer the type of such lists, and short to be told it.
    """
    if before is None or not pa.types.is_list(before.type):
        return None
    inner = before.type.value_type
    if not pa.types.is_struct(inner) or not all(pa.types.is_string(f.type) for f in inner):
        return None
    names = {field.name for field in inner}
    try:
        if all(item.keys() == names for value in values if value is not None for item in value):
            return pa.array(values, before.type)
    except (*_MIXED, AttributeError, TypeError, UnicodeEncodeError):
        pass  # found out anew, and then named
    return None


def _array(values: list[Any], name: str, block: Block, big: set[str]) -> pa.Array:
    try:
        try:
            array = pa.array(values)
        except _MIXED:
            if all(v is None or (isinstance(v, int) and not isinstance(v, bool)) for v in values):
                big.add(name)
                return pa.array([None if v is None else str(v) for v in values], pa.string())
            return json_array(values)
        if holds(values, array.type):
            return array
        try:
            return json_array(values)
        except TypeError as error:  # dates, bytes: Arrow would make one of the other
            raise DataError(_of_two_types(values, name, block)) from error
    except UnicodeEncodeError as error:
        for index, value in enumerate(values):
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError as found:
                half = found.object[found.start]
                raise DataError(
                    f"{block.where(index)}, column {name!r}: \\u{ord(half):04x} is half of a "
                    "surrogate pair, which is no Unicode text; write the whole character"
                ) from error
        raise


def holds(values: list[Any], kind: pa.DataType) -> bool:
    """Whether an Arrow type that was inferred for values keeps each of them as it is.

    It does not where objects at the same place have different keys, of which Arrow makes nulls, nor
    where values are of several types, of which it makes one: 0.0 and False would be 0.0 twice.
    """
    present = [v for v in values if v is not None]
    if pa.types.is_list(kind):
        if pa.types.is_string(kind.value_type):
            return True
        return holds([item for v in present for item in v], kind.value_type)
    if not pa.types.is_struct(kind):
        return pa.types.is_string(kind) or len({_family(t) for t in set(map(type, present))}) <= 1
    keys = present[0].keys()
    return all(v.keys() == keys for v in present) and all(
        holds([v[field.name] for v in present], field.type)
        for field in kind
        if not pa.types.is_string(field.type)
    )


def _family(kind: type) -> type:
    """The type that values of a type are one of: all numbers are numbers, but no truth value is."""
    if issubclass(kind, bool | np.bool_):
        return bool
    return numbers.Number if issubclass(kind, numbers.Number) else kind


def _of_two_types(values: list[Any], name: str, block: Block) -> str:
    """What is said of a column whose types cannot stand together, with the first odd row."""
    kinds = [None if v is None else type(v) for v in values]
    first = next(kind for kind in kinds if kind is not None)
    odd = next((i for i, kind in enumerate(kinds) if kind not in (None, first)), None)
    where, found = f"{block.name}, column {name!r}", "lists with values of several types"
    if odd is not None:
        where = f"{block.where(odd)}, column {name!r}"
        found = f"a value of type {type(values[odd]).__name__} among those of type {first.__name__}"
    return f"{where}: {found}; give values of one type"


def _json(values: list[Any]) -> pa.Array:
    texts = [None if v is None else json.dumps(_storable(v), ensure_ascii=False) for v in values]
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts, pa.string()))


def _storable(value: Any) -> Any:  # Any: a JSON value
    """The value, with whole numbers over 64 bits as text: what reads the JSON takes no others."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and not -_LIMIT <= value < _LIMIT:
        return str(value)
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    return value


def _joined(parts: list[Any], big: bool) -> pa.ChunkedArray:
    """One column of its blocks' arrays, in a type that changes no value of any of them."""
    kinds = {p.type for p in parts if not isinstance(p, int) and not pa.types.is_null(p.type)}
    kind = next(iter(kinds), pa.null())
    if len(kinds) > 1:
        if big and kinds == {pa.int64(), pa.string()}:
            kind = pa.string()
        elif kinds == {pa.int64(), pa.float64()}:
            kind = pa.float64()
        else:
            return _joined_as_json(parts)
    try:
        arrays = [pa.nulls(p, kind) if isinstance(p, int) else _cast(p, kind) for p in parts]
    except pa.ArrowInvalid:  # a whole number that no float is equal to
        return _joined_as_json(parts)
    return pa.chunked_array(arrays, kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    return array if array.type == kind else array.cast(kind)


def _joined_as_json(parts: list[Any]) -> pa.ChunkedArray:
    values: list[Any] = []
    for part in parts:
        values += [None] * part if isinstance(part, int) else python_values(part)
    return pa.chunked_array([json_array(values)])
