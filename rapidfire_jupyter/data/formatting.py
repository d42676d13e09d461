"""A user's formatting_func: what it gives wins over every layout."""

import types
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from rapidfire_jupyter.data.columns import by_datasets, dataset_of, table_of
from rapidfire_jupyter.data.reading import Block
from rapidfire_jupyter.encoding import digest, globals_of
from rapidfire_jupyter.errors import DataError

BATCH = 1000
_PROBE = 5  # rows of the batch that tells what a function is written for


def format_rows(
    dataset: Any,
    function: Callable[[Any], Any],
    what: str,
    keep: bool = False,
    text: str = "text",
) -> Any:
    """Call a formatting function on each row; one that gives a list, on batches of rows.

    Args:
        dataset: A datasets.Dataset, or an IterableDataset, which is formatted while it is read.
            Any: and what the function takes and gives.
        function: Gives, for a row, its text or a dict of columns. Or, for a batch (a dict of
            lists), a list of texts or a dict of lists, one for each row.
        what: How messages call the data.
        keep: Whether the columns that are there stay.
        text: The column that a text becomes.

    Returns:
        The data set of the columns it gave.

    Raises:
        DataError: It raises, or gives something else; the message has the row.
    """
    from datasets import IterableDataset

    batched = _takes_batches(function, next(iter(dataset)))

    def formatted(batch: Mapping[str, Any], numbers: list[int]) -> list[dict[str, Any]]:
        given = _rows(batch)
        if batched:
            where = f"{what}, rows {numbers[0] + 1} to {numbers[-1] + 1}"
            made = _called(function, dict(batch), where)
            rows = _rows(_batch_columns(made, len(numbers), where, text))
        else:
            wheres = [f"{what}, row {number + 1}" for number in numbers]
            rows = [
                _columns(_called(function, dict(row), where), where, text)
                for row, where in zip(given, wheres, strict=True)
            ]
        if keep:
            rows = [{**row, **new} for row, new in zip(given, rows, strict=True)]
        return rows

    if isinstance(dataset, IterableDataset):
        return _stream(dataset, formatted, keep)

    def blocks() -> Iterator[Block]:
        first = 0
        for batch in dataset.iter(batch_size=BATCH):
            size = len(next(iter(batch.values())))
            numbers = list(range(first, first + size))
            yield Block(what, formatted(batch, numbers), [n + 1 for n in numbers], "row")
            first += size

    try:
        return dataset_of(table_of(blocks()))
    except TypeError:
        return by_datasets([row for block in blocks() for row in block.rows], what)


def first_rows(dataset: Any, count: int) -> Any:
    """The first rows of a data set or stream, as a data set of their own."""
    from datasets import Dataset

    if hasattr(dataset, "__len__"):
        return dataset.select(range(min(count, len(dataset))))
    return Dataset.from_list(list(islice(iter(dataset), count)))


def key_of(function: Callable[..., Any]) -> tuple[object, ...]:
    """What tells whether a function does the same as before, as far as that can be known.

    It is the function itself; a digest of its source, its defaults, what it closes over and the
    globals it reads, and so on for functions among them; and the objects of which only a summary
    can be digested (a model, a tokenizer), to be compared by identity.
    """
    text, objects = digest([function, *_globals(function, function.__module__, set())])
    return (text, function, *objects)


def _globals(function: object, module: str, seen: set[int]) -> list[object]:
    """What a function reads, and what functions of its module read that it calls."""
    found: list[object] = []
    for name, value in globals_of(function).items():
        if id(value) in seen or isinstance(value, types.ModuleType):
            continue
        seen.add(id(value))
        found += [name, value]
        if getattr(value, "__module__", None) == module:
            found += _globals(value, module, seen)
    return found


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _stream(stream: Any, formatted: Callable[..., list[dict[str, Any]]], keep: bool) -> Any:
    """A stream that is formatted while it is read."""

    def batch_of(batch: dict[str, Any], numbers: list[int]) -> dict[str, list[Any]]:
        rows = formatted(batch, numbers)
        return {name: [row.get(name) for row in rows] for name in {k: 0 for r in rows for k in r}}

    drop = None if keep else list(next(iter(stream)))
    return stream.map(
        batch_of, with_indices=True, batched=True, batch_size=100, remove_columns=drop
    )


def _takes_batches(function: Callable[[Any], Any], row: Mapping[str, Any]) -> bool:
    """Whether a function is written for batches: of equal rows it then makes equal values.

    One that only picks columns gives the same either way.
    """
    try:
        made = function({name: [value] * _PROBE for name, value in row.items()})
    except Exception:  # written for rows: lists in place of values are too much for it
        return False
    columns = list(made.values()) if isinstance(made, Mapping) else [made]
    return bool(columns) and all(
        isinstance(column, list) and len(column) == _PROBE and column == [column[0]] * _PROBE
        for column in columns
    )


def _called(function: Callable[[Any], Any], given: dict[str, Any], where: str) -> Any:
    try:
        return function(given)
    except Exception as error:
        raise DataError(f"formatting_func failed on {where}: {error!r}") from error


def _columns(made: Any, where: str, text: str) -> dict[str, Any]:
    if isinstance(made, str):
        return {text: made}
    if isinstance(made, Mapping) and made:
        return dict(made)
    raise DataError(
        f"formatting_func must give a text or a dict of columns for each row, got "
        f"{_named(made)} on {where}"
    )


def _batch_columns(made: Any, rows: int, where: str, text: str) -> dict[str, list[Any]]:
    columns = {text: made} if isinstance(made, list) else made
    if isinstance(columns, Mapping) and columns:
        lengths = {name: len(v) if isinstance(v, list) else None for name, v in columns.items()}
        if all(length == rows for length in lengths.values()):
            if isinstance(made, list) and not all(isinstance(text, str) for text in made):
                odd = next(text for text in made if not isinstance(text, str))
                raise DataError(
                    f"formatting_func must give a list of texts for a batch, got {_named(odd)} in "
                    f"it on {where}"
                )
            return dict(columns)
        name, length = next((n, k) for n, k in lengths.items() if k != rows)
        raise DataError(
            f"formatting_func must give {rows} values for a batch of {rows} rows, got "
            f"{'no list' if length is None else length} for {name!r} on {where}"
        )
    raise DataError(
        "formatting_func must give a list of texts or a dict of lists for a batch, got "
        f"{_named(made)} on {where}"
    )


def _named(value: object) -> str:
    return "None" if value is None else type(value).__name__
